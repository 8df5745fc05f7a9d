from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from raydist.controller.events import GroupStopped, GroupUpdated
from raydist.controller.gauges import (
    GAUGES,
    MAX_NAMES,
    MAX_TASKS_WITH_VALUES,
    PUBLISH_EVERY_S,
    RunGauges,
    Sample,
    samples,
)
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import TaskPace, TaskState, TaskStatus
from tests.support.fakes import FakeClock, make_plan, make_status


def machine_after(*statuses: TaskStatus, workers: int = 2) -> RunMachine:
    machine = RunMachine(make_plan(workers=workers))
    machine.handle(GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True)))
    return machine


def machine_after_steps(**fields: Any) -> RunMachine:
    """One worker, whose ten steps took a second each, 0.1 s of it waiting for data."""
    machine = machine_after(make_status("worker/0", pace=TaskPace(at_s=5.0, steps=1, input_wait_s=3.0)))
    later = TaskPace(at_s=15.0, steps=11, input_wait_s=4.0)
    statuses = (make_status("worker/0", pace=later, **fields),)
    machine.handle(GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True)))
    return machine


def found(machine: RunMachine, gauge: str) -> dict[str, float]:
    """Returns the values of a gauge by what tells its samples apart."""
    own = ("task", "name", "state")
    return {
        " ".join(sample.labels[one] for one in own if one in sample.labels): sample.value
        for sample in samples(machine, checkpoint_at_s=None)
        if sample.gauge == gauge
    }


def test_each_task_is_told_of() -> None:
    machine = machine_after(
        make_status("worker/0", step=7, steps_per_s=2.5, metrics={"loss": 0.5}),
        make_status("worker/1", step=6, incarnation=2, local_metrics={"loss": 0.75}),
    )
    assert found(machine, "raydist_task_steps") == {"worker/0": 7, "worker/1": 6}
    assert found(machine, "raydist_task_steps_per_second") == {"worker/0": 2.5}
    assert found(machine, "raydist_task_restarts") == {"worker/0": 0, "worker/1": 2}
    assert found(machine, "raydist_task_value") == {"worker/0 loss": 0.5, "worker/1 loss": 0.75}
    assert found(machine, "raydist_task_running") == {"worker/0": 1, "worker/1": 1}
    assert found(machine, "raydist_run_steps") == {"": 7}


def test_wait_for_data_is_that_of_the_last_steps() -> None:
    assert found(machine_after_steps(), "raydist_task_input_wait_ratio") == {"worker/0": pytest.approx(0.1)}


def test_loss_that_is_nan_is_counted() -> None:
    machine = machine_after(make_status("worker/0", metrics={"loss": math.nan, "accuracy": 0.5}))
    assert found(machine, "raydist_task_nonfinite_values") == {"worker/0": 1}
    assert found(machine, "raydist_task_value") == {"worker/0 accuracy": 0.5}


def test_one_state_is_1() -> None:
    states = found(machine_after(make_status("worker/0", TaskState.STARTING)), "raydist_run_state")
    assert states.pop("STARTING") == 1
    assert set(states.values()) == {0}
    assert "SUCCEEDED" in states


def test_checkpoint_has_its_time_once_there_is_one() -> None:
    machine = machine_after()
    assert found(machine, "raydist_run_checkpoint_time_seconds") == {}
    told = samples(machine, checkpoint_at_s=1234.5)
    labels = {"run": "r", "train_job": "job.py:train"}
    assert Sample("raydist_run_checkpoint_time_seconds", labels, 1234.5) in told


def test_run_that_has_ended_has_no_tasks() -> None:
    ended = [make_status(f"worker/{index}", TaskState.FINISHED, step=8) for index in range(2)]
    machine = machine_after(*ended)
    machine.handle(GroupStopped())
    assert found(machine, "raydist_run_state")["SUCCEEDED"] == 1
    assert found(machine, "raydist_run_steps") == {"": 8}
    assert not [sample for sample in samples(machine, checkpoint_at_s=None) if "task" in sample.labels]


def test_number_of_series_is_bounded() -> None:
    many = {f"value_{number:03}": 1.0 for number in range(10 * MAX_NAMES)}
    assert len(found(machine_after(make_status("worker/0", metrics=many)), "raydist_task_value")) == MAX_NAMES
    num_tasks = MAX_TASKS_WITH_VALUES + 1
    statuses = [make_status(f"worker/{index}", metrics={"loss": 1.0}) for index in range(num_tasks)]
    machine = machine_after(*statuses, workers=num_tasks)
    assert found(machine, "raydist_task_value") == {"worker/0 loss": 1.0}
    assert len(found(machine, "raydist_task_steps")) == num_tasks


def test_samples_have_the_labels_that_are_declared() -> None:
    machine = machine_after_steps(step=11, steps_per_s=1.0, metrics={"loss": 1.0})
    declared = {gauge.name: set(gauge.labels) for gauge in GAUGES}
    told = {sample.gauge: set(sample.labels) for sample in samples(machine, checkpoint_at_s=1.0)}
    assert told == declared


class Sink:
    """Implements GaugeSink."""

    def __init__(self) -> None:
        self.declared: list[str] = []
        self.values: dict[tuple[str, ...], float] = {}
        self.num_sets = 0

    def declare(self, name: str, summary: str, *, labels: tuple[str, ...]) -> None:
        self.declared.append(name)

    def set(self, name: str, value: float, *, labels: Mapping[str, str]) -> None:
        assert name in self.declared
        self.num_sets += 1
        self.values[(name, *(labels[one] for one in ("task", "state") if one in labels))] = value


def make_gauges() -> tuple[RunMachine, Sink, FakeClock, RunGauges]:
    machine, sink, clock = RunMachine(make_plan()), Sink(), FakeClock()
    return machine, sink, clock, RunGauges(machine, sink, clock=clock)


def test_gauges_are_published_every_few_seconds() -> None:
    machine, sink, clock, gauges = make_gauges()
    assert sink.declared == [gauge.name for gauge in GAUGES]
    gauges.publish()
    num_sets = sink.num_sets
    assert num_sets > 0
    machine.handle(GroupUpdated(GroupUpdate(statuses=(make_status("worker/0", step=3),))))
    clock.advance(PUBLISH_EVERY_S - 0.5)
    gauges.publish()
    assert sink.num_sets == num_sets
    clock.advance(0.5)
    gauges.publish()
    assert sink.values["raydist_task_steps", "worker/0"] == 3


def test_new_state_is_published_at_once() -> None:
    machine, sink, _, gauges = make_gauges()
    gauges.publish()
    machine.handle(
        GroupUpdated(
            GroupUpdate(
                statuses=(make_status("worker/0"), make_status("worker/1")),
                all_placed=True,
                all_addressed=True,
            )
        )
    )
    gauges.publish()
    assert sink.values["raydist_run_state", "RUNNING"] == 1
    assert sink.values["raydist_run_state", "STARTING"] == 0


def test_checkpoint_has_the_time_at_which_it_became_known() -> None:
    machine, sink, clock, gauges = make_gauges()
    gauges.publish()
    clock.advance(7.0)
    status = make_status("worker/0", checkpoint="/runs/r/checkpoints/step-3-a0")
    machine.handle(GroupUpdated(GroupUpdate(statuses=(status,))))
    gauges.publish()
    known_at_s = clock.unix()
    clock.advance(20.0)
    gauges.publish()
    assert sink.values[("raydist_run_checkpoint_time_seconds",)] == known_at_s
