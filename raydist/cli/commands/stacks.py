"""`raydist stacks RUN`: where the tasks of a run are in their code."""

from __future__ import annotations

import click

from raydist.cli.job_options import json_option, storage_option, timeout_option
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output
from raydist.errors import ClusterError
from raydist.spec.tasks import TaskId


@click.command("stacks", epilog="More: `raydist guide commands`.")
@run_argument
@click.option("--task", "names", metavar="TASK", multiple=True, help="Only this task, such as worker/1.")
@timeout_option("30s")
@storage_option
@json_option
def command(run: str, names: tuple[str, ...], timeout_s: float, storage: str, is_json: bool) -> None:
    """Print the Python stacks of a live run's tasks.

    Training continues meanwhile. It also works for a task that hangs in TensorFlow. The stacks are in the
    tasks' logs as well.
    """
    from raydist.runs.stacks import dump_stacks

    opened = open_named(storage, run)
    with output.stdout_kept_for_json(is_json):
        found = dump_stacks(opened, [TaskId.parse(name) for name in names], timeout_s=timeout_s)
    if all(text is None for text in found.values()):
        tasks = ", ".join(map(str, found))
        raise ClusterError(f"{tasks} of run {opened.run} showed no stacks within {timeout_s:g} s")
    if is_json:
        stacks = {str(task): text for task, text in found.items()}
        output.print_json({"run": opened.run, "stacks": stacks})
        return
    for task, text in found.items():
        shown = text or f"no stacks within {timeout_s:g} s\n"
        output.show(f"== {task}\n{shown}")
