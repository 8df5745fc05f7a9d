"""Workers of parameter servers, whose pace the chief tells."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.outcome.result import StragglerCause
from raydist.outcome.status import TaskPace, TaskState
from raydist.stragglers.watch import NUM_SAMPLES, SAMPLE_S, StragglerWatch
from tests.support.fakes import make_status, task

STEP_S = 0.1


class Workers:
    """A chief and its workers, which are told as they are."""

    def __init__(self, num_workers: int = 3) -> None:
        self.watch = StragglerWatch()
        self.fields: dict[str, dict[str, Any]] = {f"worker/{index}": {} for index in range(num_workers)}
        self._sums = [(0.0, 0)] * num_workers
        self._tell()

    def train(self, samples: int, *slow: int, step_s: float = 0.4) -> None:
        """Lets so many samples pass, in which each worker is busy all the time."""
        for _ in range(samples):
            for index, (seconds, steps) in enumerate(self._sums):
                num_steps = round(SAMPLE_S / (step_s if index in slow else STEP_S))
                self._sums[index] = seconds + SAMPLE_S, steps + num_steps
            self._tell()

    def begin_anew(self) -> None:
        """Begins another `fit`, for which the seconds and steps are counted from 0 again."""
        self._sums = [(0.0, 0)] * len(self._sums)
        self._tell()

    def _tell(self) -> None:
        paces = tuple(TaskPace(at_s=seconds, steps=steps) for seconds, steps in self._sums)
        own = TaskPace(at_s=paces[0].at_s, steps=sum(one.steps for one in paces), cpu_s=1.0)
        workers = [make_status(name, **fields) for name, fields in self.fields.items()]
        chief = make_status("chief/0", pace=own, worker_paces=paces)
        self.watch.take([chief, make_status("ps/0"), *workers])

    @property
    def told(self) -> list[tuple[str, StragglerCause, bool]]:
        return [(str(one.task), one.cause, one.is_over) for one in self.watch.stragglers]


UNKNOWN = StragglerCause.UNKNOWN


def test_slow_worker_is_named_until_it_is_as_fast_as_the_others() -> None:
    workers = Workers()
    workers.train(NUM_SAMPLES - 1, 1)
    assert workers.told == []
    workers.train(1, 1)
    assert workers.told == [("worker/1", UNKNOWN, False)]
    [straggler] = workers.watch.stragglers
    assert straggler.times_slower == pytest.approx(4.0)
    assert straggler.message.startswith(
        "worker/1 is 4.0 times slower than the median of the tasks: of each step it takes 400 ms by itself, "
        "median 100 ms. Likely cause: unknown: neither its CPU time nor its input is measured under "
        "parameter_server; "
    )
    workers.train(NUM_SAMPLES)
    assert workers.told == [("worker/1", UNKNOWN, True)]


def test_chief_whose_steps_are_those_of_all_workers_is_not_compared_with_them() -> None:
    workers = Workers(num_workers=8)
    workers.train(2 * NUM_SAMPLES)
    assert workers.told == []
    times = workers.watch.times()
    assert times[task("chief/0")].step_s == pytest.approx(STEP_S / 8)
    assert times[task("worker/7")].step_s == pytest.approx(STEP_S)
    assert task("ps/0") not in times


def test_slower_one_of_two_workers_is_named() -> None:
    workers = Workers(num_workers=2)
    workers.train(NUM_SAMPLES, 0)
    assert workers.told == [("worker/0", UNKNOWN, False)]


def test_samples_begin_anew_with_a_replaced_worker() -> None:
    workers = Workers()
    workers.train(NUM_SAMPLES - 1, 1)
    workers.fields["worker/2"] = {"incarnation": 1}
    workers.train(NUM_SAMPLES, 1)
    assert workers.told == []
    workers.train(1, 1)
    assert workers.told == [("worker/1", UNKNOWN, False)]


def test_samples_begin_anew_with_the_next_training() -> None:
    workers = Workers()
    workers.train(2 * NUM_SAMPLES)
    workers.begin_anew()
    workers.train(NUM_SAMPLES, 1)
    assert workers.told == [("worker/1", UNKNOWN, False)]


def test_worker_that_does_not_run_is_left_out() -> None:
    workers = Workers()
    workers.fields["worker/1"] = {"state": TaskState.STARTING}
    workers.train(NUM_SAMPLES + 1, 1)
    assert workers.told == []
    assert task("worker/1") not in workers.watch.times()
