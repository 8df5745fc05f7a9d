from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from raydist.controller.events import GroupUpdated
from raydist.controller.machine import RunMachine
from raydist.controller.memory_growth import NUM_SAMPLES, SAMPLE_S, MemoryWatch, growth_of
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import TaskStatus
from tests.support.fakes import make_plan, make_status

GIB = 1 << 30
HOUR_S = 3600.0
LONG = 4 * NUM_SAMPLES

Peak = Callable[[float], float]


def leak(gib_per_hour: float, *, start_gib: float = 4.0) -> Peak:
    return lambda now_s: start_gib + gib_per_hour * now_s / HOUR_S


def samples(peak: Peak, number: int = LONG) -> tuple[tuple[float, int], ...]:
    return tuple((index * SAMPLE_S, int(peak(index * SAMPLE_S) * GIB)) for index in range(number))


@pytest.mark.parametrize(
    ("peak", "gib_per_hour"),
    [
        pytest.param(leak(1.2), 1.2, id="leak"),
        pytest.param(lambda now_s: 4 + math.floor(now_s / 120) * 0.04, 1.2, id="leak-in-steps"),
        pytest.param(lambda now_s: leak(1.2)(now_s) + (8 if now_s < 300 else 0), 1.2, id="after-warm-up"),
        pytest.param(lambda now_s: 4.0, None, id="level"),
        pytest.param(lambda now_s: 4 + 2 * (1 - math.exp(-now_s / 600)), None, id="cache-that-fills"),
        pytest.param(lambda now_s: 4.0 if now_s < 1500 else 9.0, None, id="one-large-batch"),
        pytest.param(lambda now_s: 4 + min(now_s, 1800) / 900, None, id="growth-that-has-ended"),
    ],
)
def test_growth_is_found_where_it_goes_on(peak: Peak, gib_per_hour: float | None) -> None:
    growth = growth_of(samples(peak))
    found = None if growth is None else growth * HOUR_S / GIB
    assert found == (None if gib_per_hour is None else pytest.approx(gib_per_hour, rel=0.1))


def test_it_is_too_early_to_judge_few_samples() -> None:
    assert growth_of(samples(leak(1.2), NUM_SAMPLES - 1)) is None


class Watch:
    """A memory watch that is shown each second what tasks have."""

    def __init__(self) -> None:
        self.watch = MemoryWatch()
        self.now_s = 0.0

    def look(
        self,
        *tasks: tuple[str, Peak],
        for_s: float = 2000,
        left_s: float | None,
        reserved: int = 0,
        **fields: object,
    ) -> tuple[str, ...]:
        for _ in range(int(for_s)):
            self.now_s += 1
            statuses = [self.status(name, peak, **fields) for name, peak in tasks]
            self.watch.take(statuses, now_s=self.now_s, left_s=left_s, reserved_bytes=lambda task: reserved)
        return tuple(self.watch.notes)

    def status(self, name: str, peak: Peak, **fields: object) -> TaskStatus:
        known = {"peak_memory_bytes": int(peak(self.now_s) * GIB), "memory_limit_bytes": 24 * GIB}
        return make_status(name, **{**known, **fields})


def test_task_that_would_reach_the_hosts_memory_before_the_end_is_named_once() -> None:
    watch = Watch()
    tasks = (("worker/0", leak(0)), ("worker/1", leak(6)))
    [note] = watch.look(*tasks, left_s=5 * HOUR_S)
    assert note == (
        "the memory of worker/1 grows by 6 GiB an hour and would reach the host's 24 GiB in about 3.1 h, "
        "before the run's end in about 5 h"
    )
    assert watch.look(*tasks, left_s=5 * HOUR_S) == (note,)
    watch.watch.restart()
    assert watch.look(*tasks, left_s=5 * HOUR_S) == (note,)


@pytest.mark.parametrize("left_s", [2 * HOUR_S, None])
def test_nobody_is_named_if_the_run_ends_before_or_its_end_is_unknown(left_s: float | None) -> None:
    assert Watch().look(("worker/1", leak(6)), left_s=left_s) == ()


def test_tasks_of_one_host_share_its_memory() -> None:
    tasks = (("worker/0", leak(6)), ("worker/1", leak(6)))
    [first, second] = Watch().look(*tasks, left_s=5 * HOUR_S, host="10.0.0.1")
    assert (
        "worker/0 grows by 6 GiB an hour and would reach the host's 24 GiB, which 2 tasks share, in" in first
    )
    assert "in about 68 min" in first
    assert "worker/1" in second


def test_reservation_is_a_limit_too() -> None:
    [note] = Watch().look(("worker/1", leak(6)), left_s=5 * HOUR_S, reserved=8 * GIB)
    assert "would reach the 8 GiB that it reserves in about 28 min" in note
    assert "host" in Watch().look(("worker/1", leak(6)), left_s=5 * HOUR_S, reserved=2 * GIB)[0]


def test_replaced_process_begins_anew() -> None:
    watch = Watch()
    watch.look(("worker/1", leak(6)), for_s=NUM_SAMPLES * SAMPLE_S - 60, left_s=5 * HOUR_S)
    assert watch.look(("worker/1", leak(6)), for_s=300, left_s=5 * HOUR_S, incarnation=1) == ()


def test_watch_of_days_keeps_few_samples() -> None:
    watch = Watch()
    for _ in range(500):
        watch.now_s += 600
        status = watch.status("worker/1", leak(0.001))
        watch.watch.take([status], now_s=watch.now_s, left_s=None, reserved_bytes=lambda task: 0)
    [memory] = watch.watch.memories.values()
    assert len(memory.samples) <= 2 * NUM_SAMPLES
    assert memory.growth is not None


def test_run_notes_what_grows() -> None:
    machine = RunMachine(make_plan())
    watch = Watch()
    for second in range(2000):
        watch.now_s = second
        fields = {
            "num_steps": 40_000,
            "step": second + 2,
            "first_step": 1,
            "first_step_at_s": 0.5,
            "at_s": second + 1.5,
        }
        statuses = tuple(
            watch.status(name, peak, **fields)
            for name, peak in (("worker/0", leak(0)), ("worker/1", leak(6)))
        )
        machine.handle(
            GroupUpdated(GroupUpdate(statuses=statuses, all_placed=True, all_addressed=True), second, second)
        )
    [note] = machine.notes
    assert note.startswith("the memory of worker/1 grows by 6 GiB an hour and would reach the host's 24 GiB")
