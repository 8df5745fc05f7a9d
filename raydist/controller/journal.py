"""What a run tells while it goes on: dicts of plain values, for the events log and for the screen.

`event` says which: `state`, `task_failed` and `attempt_lost` (another one follows) are kept; `progress`
comes with every poll and is meant for the screen alone.
"""

from __future__ import annotations

from typing import Any

from raydist.controller.machine import RunMachine
from raydist.controller.run_error import RunError
from raydist.controller.states import RunState
from raydist.spec.status import TaskFailure, TaskState

PROGRESS = "progress"


def state_event(machine: RunMachine, *, at_s: float, error: RunError | None) -> dict[str, Any]:
    return _event("state", machine, at_s, state=machine.state.value, error=error and error.as_dict())


def failure_event(machine: RunMachine, failure: TaskFailure, *, at_s: float) -> dict[str, Any]:
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


def attempt_lost_event(machine: RunMachine, note: str, *, at_s: float) -> dict[str, Any]:
    return _event("attempt_lost", machine, at_s, message=note)


def progress_event(machine: RunMachine, *, at_s: float, run_s: float) -> dict[str, Any]:
    """Returns what a line of progress needs, as the chief sees it: phase, step, epoch, rate, metrics."""
    chief = machine.attempt.statuses.get(machine.chief)
    return _event(
        PROGRESS,
        machine,
        at_s,
        phase=_phase(machine),
        epoch=chief and chief.epoch,
        num_epochs=chief and chief.num_epochs,
        step=chief.step if chief else 0,
        num_steps=chief and chief.num_steps,
        steps_per_s=chief and chief.steps_per_s,
        metrics={**chief.metrics, **chief.local_metrics} if chief else {},
        run_s=run_s,
    )


def _event(name: str, machine: RunMachine, at_s: float, **facts: Any) -> dict[str, Any]:
    return {"event": name, "at_s": at_s, "attempt": machine.attempt.number, **facts}


def _phase(machine: RunMachine) -> str:
    states = list(machine.attempt.states.values())
    if machine.state is not RunState.STARTING:
        return machine.state.name.lower()
    if not machine.attempt.is_placed:
        return f"waiting for room for {len(states)} {'task' if len(states) == 1 else 'tasks'}"
    num_ready = sum(state not in (TaskState.PENDING, TaskState.STARTING) for state in states)
    return f"starting tasks ({num_ready} of {len(states)} ready)"
