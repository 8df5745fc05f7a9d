"""What a run tells of a task that is slower than the others."""

from __future__ import annotations

import dataclasses

import pytest

from raydist.controller.events import GroupUpdated
from raydist.controller.journal import Known, news_events
from raydist.controller.machine import RunMachine
from raydist.controller.result import result_of
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.codec import from_plain
from raydist.outcome.result import RunResult
from raydist.outcome.status import TaskPace, TaskStatus
from raydist.stragglers.watch import NUM_SAMPLES, SAMPLE_S
from tests.support.fakes import PLACES, make_plan, make_status

NUM_STEPS = 20


def status(name: str, sample: int, *, own_share: float) -> TaskStatus:
    seconds = SAMPLE_S * sample
    pace = TaskPace(
        at_s=100 + seconds,
        steps=NUM_STEPS * sample,
        input_wait_s=seconds * (own_share - 0.1),
        collective_wait_s=seconds * (1 - own_share),
    )
    return make_status(name, step=NUM_STEPS * sample, pace=pace)


def test_straggler_is_in_the_result_the_notes_and_once_among_the_events() -> None:
    machine, events = RunMachine(make_plan()), []
    for sample in range(NUM_SAMPLES + 3):
        known = Known.of(machine)
        slow = status("worker/1", sample, own_share=0.8)
        statuses = (status("worker/0", sample, own_share=0.2), slow)
        machine.handle(GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True)))
        events += [one for one in news_events(machine, known, at_s=9.0) if one["event"] == "straggler"]
    result = result_of(machine, places=PLACES, timings={})
    [straggler] = result.stragglers
    assert (str(straggler.task), straggler.cause.value, straggler.is_over) == ("worker/1", "data", False)
    assert result.notes == (straggler.message,)
    assert machine.notes == ()  # it is not an interruption
    [event] = events
    assert {**event, "times_slower": None} == {
        **{"event": "straggler", "at_s": 9.0, "attempt": 0, "task": "worker/1", "cause": "data"},
        **{"times_slower": None, "message": straggler.message},
    }
    times = [(one.step_s, one.input_wait, one.collective_wait) for one in result.tasks]
    assert times == [pytest.approx((0.5, 0.1, 0.8)), pytest.approx((0.5, 0.7, 0.2))]
    assert from_plain(result.as_dict(), RunResult) == dataclasses.replace(result)
