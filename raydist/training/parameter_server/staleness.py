"""--ps-staleness: how many steps share a reading of the weights, and notes where fewer do than was asked."""

from __future__ import annotations

from collections.abc import Mapping

from raydist.spec.text import counted
from raydist.training.reporting import reporter
from raydist.training.trainers.base import TaskRun


def shared_updates(run: TaskRun, way: str, *, limits: Mapping[str, int]) -> int:
    """Returns how many of its own updates a worker's weights may lack in a training.

    Args:
      way: What trains: `fit` or `train_steps`.
      limits: Numbers of steps after which the weights are read anew, by the names that users know.
    """
    run.follows_staleness = True
    asked = run.assignment.job.ps_staleness
    num_gpus = run.strategy.num_replicas_in_sync
    if asked and num_gpus > 1:
        reporter.note(f"ps_staleness {asked} has no effect: each worker has {num_gpus} GPUs")
        return 0
    name = min(limits, key=lambda one: limits[one])
    number = min(asked, limits[name] - 1)
    if number < asked:
        effect = f"acts as {number}" if number else "has no effect"
        reporter.note(
            f"ps_staleness {asked} {effect} in this {way}: {name}={limits[name]} allows at most "
            f"{counted(limits[name], 'step')} per reading of the weights"
        )
    return number


def note_nothing_shared() -> None:
    """Notes that the steps of a closure read all weights anew."""
    reporter.note(
        "ps_staleness has no effect on these steps, which read every weight anew: steps share a weight if a "
        "gradient tape records it outside of loops and conditions, and if only an optimizer updates it"
    )


def note_unused(run: TaskRun) -> None:
    """Notes, once the train function or script has ended, that it had no training that reads less often."""
    assignment = run.assignment
    if (
        assignment.num_ps
        and assignment.is_chief
        and assignment.job.ps_staleness
        and not run.follows_staleness
    ):
        reporter.note(
            f"ps_staleness {assignment.job.ps_staleness} has no effect: {assignment.job.entry_point} called "
            "neither ctx.fit nor ctx.train_steps, which alone read the weights less often"
        )
