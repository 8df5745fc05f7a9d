from __future__ import annotations

import pytest

from raydist.training.parameter_server.closure_sizes import UNROLL, ClosureSizes


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def after(steps_s: float, *, num_workers: int = 2, total: int = 1_000_000) -> ClosureSizes:
    """Returns sizes that have seen closures for a while, whose steps took a worker `steps_s` seconds each."""
    clock = Clock()
    sizes = ClosureSizes(num_workers=num_workers, total=total, clock=clock)
    while clock.now < 20 * steps_s + 2:
        turns, unroll = sizes.next(1_000_000)
        clock.now += turns * unroll * steps_s / num_workers
        sizes.completed(turns * unroll)
    return sizes


def test_first_closure_is_one_step() -> None:
    assert ClosureSizes(num_workers=3, total=1000).next(1000) == (1, 1)


@pytest.mark.parametrize(("step_s", "steps"), [(0.001, 500), (0.02, 25), (0.5, 1)])
def test_closures_grow_until_they_take_their_time(step_s: float, steps: int) -> None:
    turns, unroll = after(step_s).next(1_000_000)
    assert turns * unroll == pytest.approx(steps, abs=1)  # rounded down


@pytest.mark.parametrize("left", [1, 2, 7, 40])
def test_never_more_than_is_left_and_smaller_towards_the_end(left: int) -> None:
    turns, unroll = after(0.001).next(left)
    assert 1 <= turns * unroll <= -(-left // 4)


def test_a_size_that_the_user_chose_is_kept() -> None:
    sizes = ClosureSizes(num_workers=2, total=1000, fixed=20)
    assert sizes.next(1000) == (20, 1)
    assert sizes.next(3) == (3, 1)


def test_unrolled_closures_have_whole_turns_and_single_steps_do_the_rest() -> None:
    sizes = after(0.001)
    sizes.unrolled(UNROLL)
    turns, unroll = sizes.next(1_000_000)
    assert unroll == UNROLL
    assert turns * unroll == pytest.approx(500, abs=UNROLL)
    # Two workers end at about the same time, as ten steps of a turn take as long as a few others.
    assert [sizes.next(left) for left in (12, 9, 2)] == [(1, UNROLL), (3, 1), (1, 1)]


def test_long_steps_are_divided_among_the_workers_at_the_end() -> None:
    sizes = after(0.04)
    sizes.unrolled(UNROLL)
    assert sizes.next(12) == (3, 1)


def test_long_steps_still_fill_one_turn_once_it_is_traced() -> None:
    sizes = after(0.05)
    sizes.unrolled(UNROLL)
    assert sizes.next(1_000_000) == (1, UNROLL)


@pytest.mark.parametrize(
    ("step_s", "total", "trace_s", "wanted"),
    [
        (0.002, 100_000, 0.1, UNROLL),
        (0.002, 1800, 0.1, 1),  # over before tracing is earned back
        (0.04, 2500, 1.0, 1),  # a long step saves no more messages than a short one
        (0.002, 100_000, 5.0, 1),  # a large model: tracing ten steps would take a minute
        (0.2, 100_000, 0.1, 1),  # the messages are not what takes the time
    ],
)
def test_unrolling_has_to_pay(step_s: float, total: int, trace_s: float, wanted: int) -> None:
    assert after(step_s, total=total).wanted_unroll(trace_s=trace_s) == wanted


def test_waiting_before_a_segment_is_no_part_of_a_steps_time() -> None:
    clock = Clock()
    sizes = ClosureSizes(num_workers=1, total=10_000, clock=clock)
    for _ in range(30):
        turns, unroll = sizes.next(10_000)
        clock.now += 0.01 * turns * unroll
        sizes.completed(turns * unroll)
    before = sizes.next(10_000)
    clock.now += 100.0  # a validation
    sizes.begin()
    sizes.next(10_000)
    clock.now += 0.2
    sizes.completed(20)
    assert sizes.next(10_000)[0] == pytest.approx(before[0], abs=1)
