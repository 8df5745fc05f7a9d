"""The time that workers of parameter servers take for their steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raydist.training.parameter_server.closure_sizes import BusyTimes
from tests.support.paces import worker_stragglers
from tests.support.processes import Cluster, run_function


class Told:
    """Sums as they are told, at times that a test sets."""

    def __init__(self, num_workers: int = 2) -> None:
        self.now_s = 100.0
        self.sums: list[Sequence[tuple[float, int]]] = []
        self.times = BusyTimes(num_workers, report=self.sums.append, clock=lambda: self.now_s)
        self.times.begin()

    def complete(self, worker: int, num_steps: int, *, at_s: float) -> None:
        self.now_s = at_s
        self.times.completed(worker, num_steps)


def test_worker_is_busy_from_one_closure_to_the_next() -> None:
    told = Told()
    told.complete(0, 10, at_s=101)
    told.complete(1, 10, at_s=102)
    told.complete(0, 20, at_s=103)
    assert told.sums == [((1, 10), (0, 0)), ((3, 30), (2, 10))]


def test_wait_for_the_other_workers_at_an_end_is_no_workers_time() -> None:
    told = Told()
    told.complete(0, 10, at_s=101)
    told.complete(1, 10, at_s=109)
    told.now_s = 150
    told.times.begin()
    told.complete(0, 10, at_s=152)
    assert told.sums[-1] == ((3, 20), (9, 10))


@pytest.mark.slow
@pytest.mark.parametrize("is_slow", [True, False], ids=["slow worker", "equal workers"])
def test_worker_whose_steps_take_longer_is_named(is_slow: bool) -> None:
    cluster = Cluster(strategy="parameter_server", workers=2, ps=1)
    target = "tests.support.straggler_functions:slowed_worker"
    pause_s = 0.2 if is_slow else 0.02
    [chief] = run_function(target, cluster, pause_s=pause_s, timeout_s=500)
    found = worker_stragglers(chief.values["told"])
    assert [(str(one.task), one.cause.value) for one in found] == [("worker/1", "unknown")] * is_slow
    if is_slow:
        assert found[0].times_slower > 3
        assert "neither its CPU time nor its input is measured" in found[0].message
