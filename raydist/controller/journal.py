"""The events of a run while it is running: dicts of plain values, for the events log and for the screen.

`event` says which. Kept are `state`; `task`, for each change of a task's state; `task_failed`; for a task
that died and its attempt continued, `task_back` or `task_given_up`; `restarting`, and once the next attempt
trains `restarted`; `attempt`, for one that was lost or has another size than the one before; `checkpoint`,
once one is committed; `straggler`, for a task that is slower than the others, once for each cause;
`training`, once the chief begins one; `note`, for anything else.
`progress` comes with every poll, `report` with the values that the chief has reported, each epoch's once, and
`output` with lines that a script has printed. None of these is kept.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from raydist.controller.attempt import Attempt
from raydist.controller.machine import RunMachine
from raydist.controller.replacement import Death
from raydist.controller.restarts import Restart
from raydist.controller.script_output import ShownLine
from raydist.outcome.result import RunError, Straggler
from raydist.outcome.status import (
    BEFORE_SERVICE,
    Report,
    RunState,
    TaskFailure,
    TaskStatus,
    Training,
    steps_hint,
)
from raydist.spec.text import DETAIL

PROGRESS = "progress"
REPORT = "report"
OUTPUT = "output"
# A worker under ParameterServer may die and come back for days: of its later processes in an attempt only
# the deaths are events.
MAX_TOLD_INCARNATIONS = 20


@dataclass(frozen=True, kw_only=True)
class Known:
    """What the events of a run have contained already."""

    attempt: int
    num_changes: int
    chief: TaskStatus | None
    failures: tuple[TaskFailure, ...]
    num_deaths: int
    num_told_deaths: int
    restarts: tuple[Restart, ...]
    num_notes: int
    num_task_notes: int
    checkpoint: str | None
    num_stragglers: int

    @classmethod
    def of(cls, machine: RunMachine) -> Known:
        attempt = machine.attempt
        return cls(
            attempt=attempt.number,
            num_changes=len(attempt.changes),
            chief=attempt.statuses.get(machine.chief),
            failures=attempt.failures,
            num_deaths=len(machine.deaths.all),
            num_told_deaths=len(machine.deaths.told),
            restarts=machine.restarts,
            num_notes=len(machine.notes),
            num_task_notes=len(machine.reached.notes),
            checkpoint=machine.reached.checkpoint,
            num_stragglers=len(machine.pace.noted),
        )

    def in_attempt(self, number: int) -> Known:
        """Returns what was known of that attempt, which may have begun since."""
        return self if number == self.attempt else dataclasses.replace(self, num_changes=0, chief=None)


def news_events(machine: RunMachine, known: Known, *, at_s: float) -> list[dict[str, Any]]:
    """Returns what is not `known` yet: changes of tasks, failures, deaths, restarts, notes, stragglers."""
    known = known.in_attempt(machine.attempt.number)
    chief = machine.attempt.statuses.get(machine.chief)
    failed = {failure.task: failure for failure in known.failures}
    failures = [one for one in machine.attempt.failures if one != failed.get(one.task)]
    failures += [death.failure for death in machine.deaths.all[known.num_deaths :]]
    restarts = [each for each in machine.restarts if each not in known.restarts]
    return [
        *checkpoint_events(machine, known, at_s=at_s),
        *(_task_event(machine, status, at_s) for status in _changed(machine.attempt, known.num_changes)),
        *(_event("training", machine, at_s, **vars(one)) for one in _begun(known.chief, chief)),
        *(_report_event(machine, report, at_s) for report in _reported(known.chief, chief)),
        *(_failure_event(machine, failure, at_s) for failure in failures),
        *(_outcome_event(machine, death, at_s) for death in machine.deaths.told[known.num_told_deaths :]),
        *(_restart_event(machine, restart, at_s) for restart in restarts),
        *(_sentence_event(machine, note, at_s) for note in machine.notes[known.num_notes :]),
        *(
            note_event(machine, note, at_s=at_s)
            for note in [*machine.reached.notes][known.num_task_notes :]
            if not note.startswith(DETAIL)
        ),
        *(_straggler_event(machine, one, at_s) for one in machine.pace.noted[known.num_stragglers :]),
    ]


def checkpoint_events(machine: RunMachine, known: Known, *, at_s: float) -> list[dict[str, Any]]:
    """Returns the event of the newest checkpoint, if it is not `known` yet."""
    checkpoint = machine.reached.checkpoint
    if checkpoint in (None, known.checkpoint):
        return []
    return [_event("checkpoint", machine, at_s, checkpoint=checkpoint)]


def state_event(machine: RunMachine, *, at_s: float, error: RunError | None) -> dict[str, Any]:
    return _event("state", machine, at_s, state=machine.state.value, error=error and error.as_dict())


def note_event(machine: RunMachine, message: str, *, at_s: float) -> dict[str, Any]:
    return _event("note", machine, at_s, message=message)


def _sentence_event(machine: RunMachine, sentence: str, at_s: float) -> dict[str, Any]:
    if sentence in machine.interruptions:
        return _event("attempt", machine, at_s, message=sentence)
    return note_event(machine, sentence, at_s=at_s)


def progress_event(
    machine: RunMachine, *, at_s: float, run_s: float, running_s: float | None
) -> dict[str, Any]:
    """Returns what a line of progress needs, as the chief sees it: phase, step, epoch, rate, metrics.

    Args:
      running_s: How long the tasks have been running; None before they do.
    """
    chief = machine.attempt.statuses.get(machine.chief)
    step = chief.step if chief else 0
    is_script = machine.plan.job.entry_point.is_script and machine.state is RunState.RUNNING
    return _event(
        PROGRESS,
        machine,
        at_s,
        phase=_phase(machine),
        epoch=chief and chief.epoch,
        num_epochs=chief and chief.num_epochs,
        step=step,
        num_steps=chief and chief.num_steps,
        steps_per_s=chief and chief.steps_per_s,
        metrics={**chief.metrics, **chief.local_metrics} if chief else {},
        run_s=run_s,
        hint=steps_hint(is_script=is_script, step=step, running_s=running_s),
    )


def output_event(machine: RunMachine, lines: Iterable[ShownLine], *, at_s: float) -> dict[str, Any]:
    """Returns what a script has printed; the lines that all tasks have printed are without tasks."""
    told = [{"text": line.text, "tasks": [str(task) for task in line.tasks]} for line in lines]
    return _event(OUTPUT, machine, at_s, lines=told)


def _changed(attempt: Attempt, num_changes: int) -> list[TaskStatus]:
    """Returns the tasks whose process or state is another one. A task that is PENDING at first is not."""
    statuses = attempt.news_since(num_changes)
    return [status for status in statuses if status.incarnation < MAX_TOLD_INCARNATIONS]


def _begun(known: TaskStatus | None, now: TaskStatus | None) -> list[Training]:
    """Returns the trainings that the chief has begun since it was `known`."""
    return [one for one in (now.trainings if now else ()) if known is None or one not in known.trainings]


def _reported(known: TaskStatus | None, now: TaskStatus | None) -> list[Report]:
    """Returns what the chief has reported since it was `known`."""
    if now is None or now is known or not now.reports:
        return []
    is_same = known is not None and known.reports and known.incarnation == now.incarnation
    last = known.reports[-1].number if known is not None and is_same else 0
    return [report for report in now.reports if report.number > last]


def _report_event(machine: RunMachine, report: Report, at_s: float) -> dict[str, Any]:
    metrics = dict(report.metrics)
    return _event(REPORT, machine, at_s, step=report.step, epoch=report.epoch, metrics=metrics)


def _task_event(machine: RunMachine, status: TaskStatus, at_s: float) -> dict[str, Any]:
    return _event(
        "task",
        machine,
        at_s,
        task=str(status.task),
        state=status.state.value,
        host=status.host or None,
        incarnation=status.incarnation,
        step=status.step,
    )


def _failure_event(machine: RunMachine, failure: TaskFailure, at_s: float) -> dict[str, Any]:
    return _event(
        "task_failed",
        machine,
        at_s,
        task=str(failure.task),
        kind=failure.kind.value,
        type=failure.error_type,
        message=failure.message,
        step=failure.step,
    )


def _outcome_event(machine: RunMachine, death: Death, at_s: float) -> dict[str, Any]:
    name = "task_given_up" if death.is_given_up else "task_back"
    after_s, message = death.back_after_s, death.sentence()
    return _event(name, machine, at_s, task=str(death.task), after_s=after_s, message=message)


def _restart_event(machine: RunMachine, restart: Restart, at_s: float) -> dict[str, Any]:
    return _event(
        "restarting" if restart.step is None else "restarted",
        machine,
        at_s,
        tasks=[str(task) for task in restart.cause.tasks],
        step=restart.step,
        pause_s=restart.pause_s,
        message=restart.sentence(),
    )


def _straggler_event(machine: RunMachine, straggler: Straggler, at_s: float) -> dict[str, Any]:
    return _event(
        "straggler",
        machine,
        at_s,
        task=str(straggler.task),
        cause=straggler.cause.value,
        times_slower=straggler.times_slower,
        message=straggler.message,
    )


def _event(name: str, machine: RunMachine, at_s: float, **facts: Any) -> dict[str, Any]:
    return {"event": name, "at_s": at_s, "attempt": machine.attempt.number, **facts}


def _phase(machine: RunMachine) -> str:
    num_tasks = len(machine.attempt.tasks)
    if machine.state is not RunState.STARTING:
        return machine.state.name.lower()
    if not machine.attempt.is_placed:
        return f"waiting for room for {num_tasks} {'task' if num_tasks == 1 else 'tasks'}"
    num_ready = num_tasks - machine.attempt.tally.num_in(BEFORE_SERVICE)
    return f"starting tasks ({num_ready} of {num_tasks} ready)"
