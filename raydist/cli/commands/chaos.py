"""`raydist chaos RUN --kill TASK`: disturbs a run, to see it survive."""

from __future__ import annotations

import click

from raydist.cli.job_options import DurationType, json_option, storage_option
from raydist.cli.run_argument import open_named, run_argument, wait_option
from raydist.cli.screen import output
from raydist.errors import MistakeError, SpecError
from raydist.runs.chaos import Fault, disturb
from raydist.spec.tasks import TaskId

_DONE = {Fault.KILL: "killed", Fault.TERM: "sent SIGTERM to", Fault.STOP: "stopped"}


@click.command("chaos", epilog="More: `raydist guide failures`.")
@run_argument
@click.option("--kill", metavar="TASK", help="Kill a task (SIGKILL), such as worker/1.")
@click.option("--term", metavar="TASK", help="Tell a task to leave (SIGTERM), as before a preemption.")
@click.option("--stop", metavar="TASK", help="Make a task hang (SIGSTOP).")
@click.option(
    "--for",
    "for_s",
    metavar="DURATION",
    type=DurationType(),
    help="With --stop: let it continue after this time: seconds, or 90s, 5m, 2h.",
)
@click.option("--at-step", metavar="N", default=0, help="Wait until the run has completed N steps.")
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Ray cluster, to reach tasks on other hosts; the run's own when omitted.",
)
@wait_option
@storage_option
@json_option
def command(
    run: str,
    kill: str | None,
    term: str | None,
    stop: str | None,
    for_s: float | None,
    at_step: int,
    address: str | None,
    wait_s: float,
    storage: str,
    is_json: bool,
) -> None:
    """Kill or suspend a task of a run, to see the run recover.

    \b
    Example:
      raydist chaos cifar-20261121-093012-1f3a --kill worker/1 --at-step 100
    """
    asked = {Fault.KILL: kill, Fault.TERM: term, Fault.STOP: stop}
    given = [(fault, text) for fault, text in asked.items() if text is not None]
    if len(given) != 1:
        raise SpecError("give one of --kill TASK, --term TASK and --stop TASK, such as --kill worker/1")
    fault, text = given[0]
    if for_s is not None and fault is not Fault.STOP:
        raise MistakeError("--for says how long a task is stopped; give it with --stop")
    task = TaskId.parse(text)
    run = open_named(storage, run, wait_s=wait_s).run
    done = disturb(run, task, fault, storage=storage, at_step=at_step, for_s=for_s, address=address)
    if is_json:
        output.print_json(done.as_dict())
    else:
        output.show(
            f"{_DONE[fault]} {task} of run {run} (process {done.pid} on {done.host}) at step {done.step}"
        )
