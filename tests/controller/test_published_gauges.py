"""The gauges of a run: when they are published, and that Prometheus can read them from a real Ray."""

from __future__ import annotations

from collections.abc import Mapping

from raydist.controller.events import GroupUpdated
from raydist.controller.gauges import GAUGES, PUBLISH_EVERY_S, RunGauges
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate
from tests.support.fakes import FakeClock, make_plan, make_status


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
