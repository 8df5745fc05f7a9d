"""The events of a run, where no other test reads them."""

from __future__ import annotations

from raydist.controller.events import GroupUpdated
from raydist.controller.journal import Known, news_events
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import Report, Training
from tests.support.fakes import make_plan, make_status


def test_each_training_that_the_chief_begins_is_one_event() -> None:
    machine, events = RunMachine(make_plan()), []
    first, second = (Training(kind="fit", number=number, step=20 * number) for number in (1, 2))
    for begun in ((), (first,), (first,), (first, second)):
        known = Known.of(machine)
        statuses = (make_status("worker/0", trainings=begun), make_status("worker/1", trainings=begun))
        machine.handle(GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True)))
        events += [one for one in news_events(machine, known, at_s=9.0) if one["event"] == "training"]
    told = {"event": "training", "at_s": 9.0, "attempt": 0, "kind": "fit"}
    assert events == [{**told, "number": 1, "step": 20}, {**told, "number": 2, "step": 40}]


def reports_told(*sent: tuple[Report, ...]) -> list[tuple[int, float]]:
    """Returns step and loss of each report that is told of a chief that sends these statuses."""
    machine, events = RunMachine(make_plan()), []
    for reports in sent:
        known = Known.of(machine)
        statuses = (make_status("worker/0", reports=reports), make_status("worker/1"))
        machine.handle(GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True)))
        events += [one for one in news_events(machine, known, at_s=9.0) if one["event"] == "report"]
    return [(event["step"], event["metrics"]["loss"]) for event in events]


def test_each_report_of_the_chief_is_one_event_however_many_come_at_once() -> None:
    one, two, three = (
        Report(number=number, step=10 * number, epoch=number, metrics={"loss": 1 / number})
        for number in (1, 2, 3)
    )
    told = reports_told((), (one, two), (one, two), (one, two, three), (two, three))
    assert told == [(10, 1.0), (20, 0.5), (30, 1 / 3)]


def test_report_of_a_value_that_is_no_number_is_told_once() -> None:
    first = [Report(number=1, step=10, epoch=1, metrics={"loss": float("nan")}) for _ in range(2)]
    assert len(reports_told((first[0],), (first[1],))) == 1
