"""What is printed when a run has ended, or was accepted by a cluster."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection
from typing import TYPE_CHECKING, TextIO

from raydist.cli.job_options import default_storage
from raydist.cli.screen import output, run_view
from raydist.cli.screen.progress import duration, metrics_line

if TYPE_CHECKING:
    from raydist.spec.result import RunResult


def print_end(result: RunResult, *, said: Collection[str], stream: TextIO) -> None:
    """Prints how a run ended.

    Args:
      said: The notes that were printed while it went on.
    """
    for note in result.notes:
        if note not in said:
            output.show(f"note: {note}", stream=stream)
    if result.traceback:
        output.show(f"\n{result.traceback.rstrip()}\n", stream=stream)
    if result.error is not None and result.error.log_end:
        lines = "\n".join(f"  {line}" for line in result.error.log_end.splitlines())
        output.show(f"\nthe end of {result.error.task}'s log:\n{lines}\n", stream=stream)
    if result.error is not None:
        run_view.print_error(result.error, stream=stream)
    total_s = result.timings.get("total") or 0.0
    attempts = "" if result.attempts == 1 else f", {result.attempts} attempts"
    how_far = run_view.how_far(result.state, result.steps)
    output.show(f"{how_far}, {duration(total_s)}{attempts}", stream=stream)
    facts = {
        "metrics": metrics_line(result.metrics),
        "checkpoint": result.checkpoint,
        "storage": result.storage,
    }
    for name, value in facts.items():
        if value:
            output.show(f"  {name.ljust(10)}  {value}", stream=stream)
    third = "metrics" if result.exit_code == 0 else "resume"
    output.show(f"next: {_next_commands(result, 'status', 'logs', third)}", stream=stream)


def print_acceptance(result: RunResult, *, stream: TextIO) -> None:
    """Prints where a detached run is found from now on."""
    output.show(f"run {result.run} continues in the cluster, independently of this shell", stream=stream)
    output.show(f"  storage     {result.storage}", stream=stream)
    output.show(f"next: {_next_commands(result, 'status', 'logs -f', 'stop')}", stream=stream)


def _next_commands(result: RunResult, *commands: str) -> str:
    return "  ".join(f"raydist {command} {_named(result)}" for command in commands)


def _named(result: RunResult) -> str:
    """Returns what another command is to be given to find this run from this folder."""
    root = result.storage.removesuffix(f"/{result.run}")
    is_default = os.path.abspath(default_storage()) == root
    return result.run if is_default else f"{result.run} --storage {shlex.quote(root)}"
