"""`raydist profile RUN`: TensorFlow's profiler over some steps of a live task."""

from __future__ import annotations

import click

from raydist.cli.job_options import count_option, json_option, storage_option, timeout_option
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output
from raydist.spec.tasks import TaskId

# A profile holds each op of each step: more would be hundreds of MB.
_MAX_STEPS = 1000


@click.command("profile", epilog="More: `raydist guide tensorboard`.")
@run_argument
@click.option(
    "--task", "task_name", metavar="TASK", help="The task, such as worker/1; the chief when omitted."
)
@count_option("--steps", "How many steps to profile, at least.", maximum=_MAX_STEPS, default=20)
@timeout_option("2m")
@storage_option
@json_option
def command(
    run: str, task_name: str | None, steps: int, timeout_s: float, storage: str, is_json: bool
) -> None:
    """Profile the next steps of a live run's task.

    Training continues meanwhile, somewhat slower. The profile is kept with the run; `raydist tensorboard`
    shows it if the package xprof is installed.

    \b
    Example:
      raydist profile @latest --steps 50
    """
    from raydist.runs.profile import profile_task

    opened = open_named(storage, run)
    task = None if task_name is None else TaskId.parse(task_name)
    with output.stdout_kept_for_json(is_json):
        found = profile_task(opened, task, steps=steps, timeout_s=timeout_s)
    answer = found.answer
    num_steps = answer.last_step - answer.first_step + 1
    if is_json:
        output.print_json(
            {
                "run": opened.run,
                "task": str(found.task),
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
        f"{found.task}: {_count(num_steps, 'step')} ({answer.first_step} to {answer.last_step}) in "
        f"{_count(answer.calls, 'call')}, {answer.seconds:.2f} s"
    )
    if answer.is_cut:
        output.show(f"The training ended before {steps} steps.")
    elif answer.calls < num_steps:
        output.show("Several steps run in one call, and a profile begins and ends between calls.")
    output.show(f"The profile is in {answer.profile}")
    output.show(f"`raydist tensorboard {opened.run}` shows it on its Profile page (`pip install xprof`).")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
