"""The RunResult that a RunMachine stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raydist.controller.attempt.attempt import Attempt
from raydist.controller.machine import RunMachine
from raydist.spec.result import RunResult, TaskRecord
from raydist.spec.tasks import TaskId

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
    plan, attempt, reached = machine.plan, machine.attempt, machine.reached
    return RunResult(
        run=plan.job.name,
        state=machine.state,
        strategy=plan.strategy.value,
        keras=plan.keras.value,
        attempts=attempt.number + 1,
        steps=reached.steps,
        steps_repeated=reached.steps_repeated,
        metrics=reached.metrics,
        evaluation=reached.evaluation,
        checkpoint=reached.checkpoint,
        storage=places.storage,
        tasks=tuple(_task_record(task, attempt) for task in attempt.tasks),
        error=machine.error and machine.error.with_log(places.task_logs),
        notes=_notes(machine),
        timings={name: timings.get(name) for name in TIMING_NAMES},
    )


def _notes(machine: RunMachine) -> tuple[str, ...]:
    restarts = [restart.sentence() for restart in machine.restarts]
    incidents = [*machine.deaths.sentences(), *restarts, *machine.notes]
    return tuple(dict.fromkeys([*machine.plan.notes, *machine.reached.notes, *incidents]))


def _task_record(task: TaskId, attempt: Attempt) -> TaskRecord:
    status = attempt.statuses.get(task)
    if status is None or not status.pid:
        return TaskRecord(task=task, state=attempt.state_of(task))
    return TaskRecord(
        task=task,
        state=status.state,
        steps=status.step,
        host=status.host,
        pid=status.pid,
        address=status.address,
    )
