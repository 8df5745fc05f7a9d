"""The gauges of a run for Prometheus, each with its labels, and when they are published."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from raydist.controller.machine import RunMachine
from raydist.controller.task_group import Clock
from raydist.outcome.status import RunState, TaskState, TaskStatus
from raydist.spec.tasks import TaskType
from raydist.stragglers.step_times import StepTimes

# Each time series costs memory in Prometheus: what a job reports under ever new names would be without bound.
MAX_NAMES = 20
MAX_TASKS_WITH_VALUES = 100
# Ray takes the values less often.
PUBLISH_EVERY_S = 5.0

_RUN = ("run", "train_job")
_TASK = (*_RUN, "task")


@dataclass(frozen=True)
class Gauge:
    """A gauge, by Prometheus's rules for names: with its unit, where it has one."""

    name: str
    summary: str
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """The value of a gauge now."""

    gauge: str
    labels: Mapping[str, str]
    value: float


GAUGES: tuple[Gauge, ...] = (
    Gauge("raydist_run_state", "1 for the state that the run is in, 0 for the others.", (*_RUN, "state")),
    Gauge("raydist_run_attempt", "Number of the run's attempt, from 0.", _RUN),
    Gauge("raydist_run_failures", "Attempts lost to failures, which --max-failures limits.", _RUN),
    Gauge("raydist_run_steps", "The highest step that the run has completed.", _RUN),
    Gauge("raydist_run_checkpoint_time_seconds", "Unix time of the newest checkpoint.", _RUN),
    Gauge("raydist_task_running", "1 while the task runs the job, else 0.", _TASK),
    Gauge("raydist_task_restarts", "How often the task's process was replaced in this attempt.", _TASK),
    Gauge("raydist_task_steps", "Steps that the task has completed.", _TASK),
    Gauge("raydist_task_steps_per_second", "The task's newest rate of steps.", _TASK),
    Gauge("raydist_task_input_wait_ratio", "Share of the time that the task waited for data.", _TASK),
    Gauge("raydist_task_value", "A value that the task reported last, such as the loss.", (*_TASK, "name")),
    Gauge("raydist_task_nonfinite_values", "How many of its last values are NaN or infinite.", _TASK),
)


def samples(machine: RunMachine, *, checkpoint_at_s: float | None) -> list[Sample]:
    """Returns the gauges of a run as it is now. Those of tasks are left out once the run has ended.

    Args:
      checkpoint_at_s: Unix time of the newest checkpoint; None before the first.
    """
    labels = {"run": machine.plan.job.name, "train_job": str(machine.plan.job.entry_point)}
    found = [
        Sample("raydist_run_state", {**labels, "state": state.value}, float(state is machine.state))
        for state in RunState
    ]
    found += [
        Sample("raydist_run_attempt", labels, machine.attempt.number),
        Sample("raydist_run_failures", labels, len(machine.history)),
        Sample("raydist_run_steps", labels, machine.reached.steps),
    ]
    if checkpoint_at_s is not None:
        found.append(Sample("raydist_run_checkpoint_time_seconds", labels, checkpoint_at_s))
    if not machine.state.is_terminal:
        statuses, times = machine.attempt.statuses, machine.pace.times()
        # Of a large run those of the chief and the evaluator, which hold for all.
        has_all = len(statuses) <= MAX_TASKS_WITH_VALUES
        for task, status in statuses.items():
            with_values = has_all or task == machine.chief or task.task_type is TaskType.EVALUATOR
            labels_of_task = {**labels, "task": str(task)}
            found += _of_task(status, times.get(task), labels_of_task, with_values=with_values)
    return found


def _of_task(
    status: TaskStatus, times: StepTimes | None, labels: Mapping[str, str], *, with_values: bool
) -> Iterator[Sample]:
    yield Sample("raydist_task_running", labels, float(status.state is TaskState.RUNNING))
    yield Sample("raydist_task_restarts", labels, status.incarnation)
    yield Sample("raydist_task_steps", labels, status.step)
    if status.state.is_terminal:
        return  # of what it does
    if status.steps_per_s is not None:
        yield Sample("raydist_task_steps_per_second", labels, status.steps_per_s)
    if times is not None and times.input_wait is not None:
        yield Sample("raydist_task_input_wait_ratio", labels, times.input_wait)
    values = {**status.metrics, **status.local_metrics}
    # Ray's endpoint leaves such values out: without this gauge a loss that is NaN would only be missing.
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    yield Sample("raydist_task_nonfinite_values", labels, len(values) - len(finite))
    for name in sorted(finite)[:MAX_NAMES] if with_values else ():
        yield Sample("raydist_task_value", {**labels, "name": name}, finite[name])


class GaugeSink(Protocol):
    """Where gauges go, as in raydist.runtime.cluster.ray_gauges."""

    def declare(self, name: str, summary: str, *, labels: tuple[str, ...]) -> None: ...

    def set(self, name: str, value: float, *, labels: dict[str, str]) -> None: ...


class RunGauges:
    """Publishes the gauges of one run, in the process that drives it, so that steps cost no more."""

    def __init__(self, machine: RunMachine, sink: GaugeSink, *, clock: Clock) -> None:
        self._machine = machine
        self._sink = sink
        self._clock = clock
        self._published_s: float | None = None
        self._state: RunState | None = None
        self._checkpoint = machine.reached.checkpoint
        self._checkpoint_at_s: float | None = None
        for gauge in GAUGES:
            sink.declare(gauge.name, gauge.summary, labels=gauge.labels)

    def publish(self) -> None:
        """Publishes the gauges as they are now, at a change of state and every 5 s."""
        if self._machine.reached.checkpoint != self._checkpoint:
            self._checkpoint, self._checkpoint_at_s = self._machine.reached.checkpoint, self._clock.unix()
        now_s, state = self._clock.now(), self._machine.state
        is_due = self._published_s is None or now_s - self._published_s >= PUBLISH_EVERY_S
        if state is self._state and not is_due:
            return
        self._published_s, self._state = now_s, state
        for sample in samples(self._machine, checkpoint_at_s=self._checkpoint_at_s):
            self._sink.set(sample.gauge, sample.value, labels=dict(sample.labels))
