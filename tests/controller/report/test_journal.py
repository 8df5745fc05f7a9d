"""The events of a run, where no other test reads them."""

from __future__ import annotations

from raydist.controller.events import GroupUpdated
from raydist.controller.machine import RunMachine
from raydist.controller.report.journal import Known, news_events
from raydist.controller.task_group import GroupUpdate
from raydist.spec.status import Training
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
