"""How many steps go into a call: pure, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raydist.strategies.packing import CALLS_BETWEEN, FIRST_CALLS, MAX_STEPS, Packer, watches_batches


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def counts(
    *,
    step_s: float,
    num_calls: int,
    agree: Callable[[float], float] | None,
    limit: Callable[[], int] | None = None,
) -> list[int]:
    clock = Clock()
    packer = Packer(agree=agree, limit=limit, clock=clock)
    taken = []
    for _ in range(num_calls):
        taken.append(packer.next_count(10_000))
        clock.now_s += step_s * taken[-1]
    return taken


def test_short_steps_are_packed_once_their_time_is_known() -> None:
    taken = counts(step_s=0.002, num_calls=FIRST_CALLS + 3, agree=lambda step_s: step_s)
    assert taken[:FIRST_CALLS] == [1] * FIRST_CALLS
    assert taken[FIRST_CALLS:] == [50, 50, 50]


def test_long_steps_stay_single() -> None:
    assert set(counts(step_s=0.2, num_calls=20, agree=lambda step_s: step_s)) == {1}


def test_workers_of_different_speed_choose_alike() -> None:
    agreed = 0.005
    fast = counts(step_s=0.001, num_calls=200, agree=lambda step_s: agreed)
    slow = counts(step_s=0.009, num_calls=200, agree=lambda step_s: agreed)
    assert fast == slow
    assert max(fast) == 20


def test_workers_agree_after_the_same_calls() -> None:
    asked: list[float] = []

    def agree(step_s: float) -> float:
        asked.append(step_s)
        return step_s

    counts(step_s=0.002, num_calls=FIRST_CALLS + 2 * CALLS_BETWEEN + 1, agree=agree)
    assert len(asked) == 3


def test_one_worker_that_watches_batches_keeps_all_from_packing() -> None:
    asked: list[float] = []

    def agree(step_s: float) -> float:
        asked.append(step_s)
        return float("inf")  # the mean, when one of them is

    assert set(counts(step_s=0.001, num_calls=200, agree=agree)) == {1}
    assert len(asked) == 1

    clock = Clock()
    watched: list[float] = []
    packer = Packer(agree=lambda step_s: watched.append(step_s) or step_s, is_free=False, clock=clock)
    for _ in range(FIRST_CALLS + 1):
        packer.next_count(100)
        clock.now_s += 0.001
    assert watched == [float("inf")]


def test_a_limit_is_never_overstepped() -> None:
    taken = counts(step_s=0.0001, num_calls=20, agree=lambda step_s: step_s, limit=lambda: 7)
    assert max(taken) == 7


def test_users_steps_per_execution_is_left_alone() -> None:
    packer = Packer(steps_per_execution=4)
    assert [packer.next_count(left) for left in (100, 100, 3)] == [4, 4, 3]


def test_size_is_bounded() -> None:
    assert max(counts(step_s=1e-7, num_calls=20, agree=lambda step_s: step_s)) == MAX_STEPS


class Base:
    def on_batch_begin(self) -> None: ...
    def on_batch_end(self) -> None: ...
    def on_train_batch_begin(self) -> None: ...
    def on_train_batch_end(self) -> None: ...


class AtEpochs(Base):
    def on_epoch_end(self) -> None: ...


class AtBatches(Base):
    def on_train_batch_end(self) -> None: ...


class OfRaydist(AtBatches):
    takes_packed_steps = True


@pytest.mark.parametrize(
    ("callback", "expected"), [(AtEpochs(), False), (AtBatches(), True), (OfRaydist(), False)]
)
def test_only_callbacks_with_batch_hooks_watch_batches(callback: Base, expected: bool) -> None:
    assert watches_batches(callback, Base) is expected
