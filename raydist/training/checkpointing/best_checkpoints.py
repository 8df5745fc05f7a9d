"""Which checkpoints --keep-best keeps: the best ones, and those that may still turn out to be."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from raydist.spec import best
from raydist.storage.checkpoint_marker import Checkpoint
from raydist.storage.checkpoints import Evaluations

# How many checkpoints are kept for an evaluator that is slower than the training.
MAX_AWAITED = 5


def best_steps(committed: Sequence[Checkpoint], keep_best: str | None) -> set[int]:
    """Returns the best step of each `ctx.fit`; those whose markers do not name it count as one."""
    fits = {checkpoint.info.get("fit") for checkpoint in committed}
    steps = (best_step([one for one in committed if one.info.get("fit") == fit], keep_best) for fit in fits)
    return {step for step in steps if step is not None}


def best_step(committed: Sequence[Checkpoint], keep_best: str | None) -> int | None:
    """Returns the step with the best value of the metric of `keep_best`; None where no checkpoint has it.

    Among equals the earliest is. A value that is no finite number is never best, and neither is a checkpoint
    whose variables are not all finite.
    """
    if keep_best is None:
        return None
    metric, _ = best.parse_keep_best(keep_best)
    found = (
        (checkpoint.info.get("metrics", {}).get(metric), checkpoint.step)
        for checkpoint in committed
        if not checkpoint.info.get("non_finite")
    )
    return best.best_step(found, keep_best)


def with_evaluations(committed: Sequence[Checkpoint], evaluations: Evaluations) -> list[Checkpoint]:
    """Returns the checkpoints with what the evaluator found for them among their metrics."""
    return [
        dataclasses.replace(
            one,
            info={**one.info, "metrics": {**one.info.get("metrics", {}), **evaluations.get(one.name, {})}},
        )
        for one in committed
    ]


def awaited(committed: Sequence[Checkpoint], evaluations: Evaluations) -> list[Checkpoint]:
    """Returns the checkpoints of the newest `ctx.fit` that await the evaluator, oldest first."""
    newest_fit = max((one.info.get("fit", 0) for one in committed), default=0)
    of_fit = (one for one in committed if one.info.get("fit", 0) == newest_fit)
    return sorted((one for one in of_fit if one.name not in evaluations), key=age)


def awaited_steps(committed: Sequence[Checkpoint], evaluations: Evaluations) -> set[int]:
    """Returns the steps that may still turn out to be the best: at most `MAX_AWAITED`.

    The oldest is one of them, because the evaluator is at work on it; the others are the newest.
    """
    steps = [one.step for one in awaited(committed, evaluations)]
    return {*steps[:1], *steps[1:][-(MAX_AWAITED - 1) :]}


def age(checkpoint: Checkpoint) -> tuple[int, int]:
    """Sorts checkpoints, the oldest first: by the attempt, then by the step."""
    return checkpoint.attempt, checkpoint.step
