"""The RunResult that a RunMachine stands for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from raydist.controller.attempt import Attempt
from raydist.controller.machine import RunMachine
from raydist.outcome.result import RunError, RunProgress, RunResult, TaskRecord
from raydist.outcome.status import RunState, TaskStatus
from raydist.spec.tasks import TaskId, TaskType
from raydist.stragglers.step_times import StepTimes

# The phases of a run, each with the seconds from the call of `raydist.run` to its end.
TIMING_NAMES = ("ray", "placement", "tasks_ready", "first_step", "total")


@dataclass(frozen=True, kw_only=True)
class RunPlaces:
    """Where a run is kept, as URIs.

    Attributes:
      storage: The run's folder.
      task_logs: Returns the folder of a task's logs in an attempt.
    """

    storage: str
    task_logs: Callable[[TaskId, int], str]


def result_of(machine: RunMachine, *, places: RunPlaces, timings: Mapping[str, float | None]) -> RunResult:
    """Returns where the run stands; its result, once the state is terminal."""
    plan, attempt, reached, times = machine.plan, machine.attempt, machine.reached, machine.pace.times()
    step = attempt.step
    return RunResult(
        run=plan.job.name,
        state=machine.state,
        strategy=plan.strategy.value,
        keras=plan.keras.value,
        attempts=attempt.number + 1,
        steps=reached.steps,
        steps_repeated=reached.steps_repeated,
        metrics=reached.metrics,
        kept_value=_value(machine),
        best=reached.best,
        evaluation=reached.evaluation,
        progress=_progress(attempt, machine.chief),
        checkpoint=reached.checkpoint,
        storage=places.storage,
        tasks=tuple(_task_record(task, attempt, times.get(task), step) for task in attempt.tasks),
        stragglers=machine.pace.stragglers,
        error=None if machine.error is None else _error(machine, machine.error, places),
        notes=_notes(machine),
        timings={name: timings.get(name) for name in TIMING_NAMES},
    )


def _error(machine: RunMachine, error: RunError, places: RunPlaces) -> RunError:
    return dataclasses.replace(error.with_log(places.task_logs), failures=machine.failures)


def _value(machine: RunMachine) -> Any:
    # A value of an attempt that was lost, although its chief had returned, belongs to no result.
    chief = machine.attempt.statuses.get(machine.chief)
    return chief.value if chief is not None and machine.state is RunState.SUCCEEDED else None


def _lag_steps(status: TaskStatus, step: int) -> int | None:
    """Returns how many steps a task is behind the one that is ahead; None for one that counts none."""
    if not status.step or status.task.task_type not in (TaskType.CHIEF, TaskType.WORKER, TaskType.EVALUATOR):
        return None
    return step - status.step


def _notes(machine: RunMachine) -> tuple[str, ...]:
    restarts = [restart.sentence() for restart in machine.restarts]
    incidents = [*machine.deaths.sentences(), *restarts, *machine.notes]
    stragglers = [one.message for one in machine.pace.noted]
    return tuple(dict.fromkeys([*machine.plan.notes, *machine.reached.notes, *incidents, *stragglers]))


def _progress(attempt: Attempt, task: TaskId) -> RunProgress | None:
    chief = attempt.statuses.get(task)
    if chief is None or not chief.pid:
        return None
    return RunProgress(
        epoch=chief.epoch,
        num_epochs=chief.num_epochs,
        num_steps=chief.num_steps,
        steps_per_s=chief.steps_per_s,
        eta_s=attempt.left_s(task),
    )


def _task_record(task: TaskId, attempt: Attempt, times: StepTimes | None, step: int) -> TaskRecord:
    status = attempt.statuses.get(task)
    if status is None or not status.pid:
        return TaskRecord(task=task, state=attempt.state_of(task))
    return TaskRecord(
        task=task,
        state=status.state,
        steps=status.step,
        steps_per_s=status.steps_per_s,
        lag_steps=_lag_steps(status, step),
        step_s=None if times is None else times.step_s,
        input_wait=None if times is None else times.input_wait,
        collective_wait=None if times is None else times.collective_wait,
        peak_memory_bytes=status.peak_memory_bytes,
        incarnation=status.incarnation,
        host=status.host,
        pid=status.pid,
        address=status.address,
    )
