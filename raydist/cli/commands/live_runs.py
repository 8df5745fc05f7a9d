"""Commands to a live run: `raydist stop`, `raydist stacks`, `raydist profile` and `raydist chaos`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from raydist.cli.job_options import (
    DurationType,
    address_option,
    count_option,
    reading_options,
    timeout_option,
)
from raydist.cli.run_argument import open_named, run_argument, wait_option
from raydist.cli.screen import output, run_view
from raydist.errors import ClusterError, MistakeError, SpecError
from raydist.outcome.codec import as_plain
from raydist.runs.chaos import Fault, disturb
from raydist.spec.tasks import TaskId
from raydist.spec.text import counted

if TYPE_CHECKING:
    from raydist.runs.attached import AttachedRun


# A controller that was brought back since does not know that its run is to stop.
_ASK_AGAIN_S = 10.0
_TASKS_RAY = "Ray to reach tasks on other hosts with; the one that you submitted to when omitted."
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
@address_option(_TASKS_RAY)
@wait_option
@reading_options
def chaos(
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
        output.print_json(as_plain(done))
    else:
        output.show(
            f"{_DONE[fault]} {task} of run {run} (process {done.pid} on {done.host}) at step {done.step}"
        )


@click.command("stacks", epilog="More: `raydist guide commands`.")
@run_argument
@click.option("--task", "names", metavar="TASK", multiple=True, help="Only this task, such as worker/1.")
@timeout_option("30s")
@address_option(_TASKS_RAY)
@reading_options
def stacks(
    run: str, names: tuple[str, ...], timeout_s: float, address: str | None, storage: str, is_json: bool
) -> None:
    """Print the Python stacks of a live run's tasks.

    Training continues. It also works for a task that hangs in TensorFlow. The stacks are in the
    tasks' logs as well.
    """
    from raydist.runs.stacks import dump_stacks

    opened = open_named(storage, run)
    with output.stdout_kept_for_json(is_json):
        tasks = [TaskId.parse(name) for name in names]
        found = dump_stacks(opened, tasks, timeout_s=timeout_s, address=address)
    if all(text is None for text in found.values()):
        raise ClusterError(
            f"{', '.join(map(str, found))} of run {opened.run} showed no stacks within {timeout_s:g} s"
        )
    if is_json:
        stacks = {str(task): text for task, text in found.items()}
        output.print_json({"run": opened.run, "stacks": stacks})
        return
    for task, text in found.items():
        shown = text or f"no stacks within {timeout_s:g} s\n"
        output.show(f"== {task}\n{shown}")


# A profile holds each op of each step: more would be hundreds of MB.
_MAX_STEPS = 1000


@click.command("profile", epilog="More: `raydist guide page`.")
@run_argument
@click.option(
    "--task", "task_name", metavar="TASK", help="The task, such as worker/1; the chief when omitted."
)
@count_option("--steps", "How many steps to profile, at least.", maximum=_MAX_STEPS, default=20)
@timeout_option("2m")
@address_option(_TASKS_RAY)
@reading_options
def profile(
    run: str,
    task_name: str | None,
    steps: int,
    timeout_s: float,
    address: str | None,
    storage: str,
    is_json: bool,
) -> None:
    """Profile the next steps of a live run's task.

    Training continues, somewhat slower. The profile is kept with the run; `raydist tensorboard`
    shows it if the package xprof is installed.

    \b
    Example:
      raydist profile @latest --steps 50
    """
    from raydist.runs.profile import profile_task

    opened = open_named(storage, run)
    asked = None if task_name is None else TaskId.parse(task_name)
    with output.stdout_kept_for_json(is_json):
        task, answer = profile_task(opened, asked, steps=steps, timeout_s=timeout_s, address=address)
    num_steps = answer.last_step - answer.first_step + 1
    if is_json:
        output.print_json(
            {
                "run": opened.run,
                "task": str(task),
                "steps": num_steps,
                "first_step": answer.first_step,
                "last_step": answer.last_step,
                "calls": answer.calls,
                "seconds": answer.seconds,
                "profile": answer.profile,
            }
        )
        return
    output.show(
        f"{task}: {counted(num_steps, 'step')} ({answer.first_step} to {answer.last_step}) in "
        f"{counted(answer.calls, 'call')}, {answer.seconds:.2f} s"
    )
    if answer.is_cut:
        output.show(f"The training ended before {steps} steps.")
    elif answer.calls < num_steps:
        output.show("Several steps run in one call, and a profile begins and ends between calls.")
    output.show(f"The profile is in {answer.profile}")
    output.show(f"`{opened.command('tensorboard')}` shows it on its Profile page (`pip install xprof`).")


@click.command("stop", epilog="More: `raydist guide on-a-cluster`.")
@run_argument
@timeout_option("60s")
@address_option("Ray that a detached run is in; the one it was submitted to when omitted.")
@wait_option
@reading_options
def stop(run: str, timeout_s: float, address: str | None, wait_s: float, storage: str, is_json: bool) -> None:
    """Stop a run and wait for its end.

    It ends as with Ctrl-C in its own shell. A detached run is stopped from any host that reaches its Ray; any
    other run on the host of the process that submitted it.
    """
    from raydist.runs.attached import AttachedRun

    opened = open_named(storage, run, wait_s=wait_s)
    run = opened.run
    attached = AttachedRun(opened, address=address)
    with output.stdout_kept_for_json(is_json):
        _stop(attached, run, timeout_s=timeout_s)
    result = attached.status()
    if is_json:
        told = result.as_dict()
        output.print_json({key: told[key] for key in ("run", "state", "steps", "checkpoint", "storage")})
    else:
        output.show(f"run {run}: {run_view.how_far(result.state, result.steps)}")


def _stop(attached: AttachedRun, run: str, *, timeout_s: float) -> None:
    attached.request_stop()
    deadline_s = time.monotonic() + timeout_s
    while not attached.wait(min(_ASK_AGAIN_S, max(0.0, deadline_s - time.monotonic()))):
        if time.monotonic() >= deadline_s:
            raise ClusterError(f"run {run} did not end within {timeout_s:g} s; {attached.where()}")
        if attached.is_detached:  # another Ctrl-C would make a process stop at once
            attached.request_stop()
