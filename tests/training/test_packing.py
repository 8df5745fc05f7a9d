"""How many steps go into a call: pure, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from raydist.training.checkpointing.schedule import MOST_SHARE, KeepSchedule
from raydist.training.stepping.hooks import Hooks
from raydist.training.stepping.packing import (
    ASK_EVERY_S,
    CALLS_BETWEEN,
    FIRST_CALLS,
    FIRST_QUESTION,
    MAX_STEPS,
    Pauses,
    StepPacker,
    watches_batches,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


Agree = Callable[[Sequence[float]], Sequence[float]]


def alone(own: Sequence[float]) -> Sequence[float]:
    return own


def with_step_of(step_s: float) -> Agree:
    """The answer where the mean time of a step is `step_s`."""
    return lambda own: (step_s, *own[1:])


def counts(
    *, step_s: float, num_calls: int, agree: Agree | None, pauses: Pauses | None = None, packs: bool = True
) -> list[int]:
    clock = Clock()
    packer = StepPacker(agree=agree, pauses=pauses, packs=packs, clock=clock)
    taken = []
    for _ in range(num_calls):
        taken.append(packer.next_count(10_000))
        clock.now_s += step_s * taken[-1]
    return taken


def test_short_steps_are_packed_once_their_time_is_known() -> None:
    taken = counts(step_s=0.002, num_calls=FIRST_CALLS + 3, agree=alone)
    assert taken[:FIRST_CALLS] == [1] * FIRST_CALLS
    assert taken[FIRST_CALLS:] == [50, 50, 50]


def test_long_steps_stay_single() -> None:
    assert set(counts(step_s=0.2, num_calls=20, agree=alone)) == {1}


def test_workers_of_different_speed_choose_alike() -> None:
    fast = counts(step_s=0.001, num_calls=200, agree=with_step_of(0.005))
    slow = counts(step_s=0.009, num_calls=200, agree=with_step_of(0.005))
    assert fast == slow
    assert max(fast) == 20


def test_workers_agree_after_the_same_calls() -> None:
    asked: list[Sequence[float]] = []

    def agree(own: Sequence[float]) -> Sequence[float]:
        asked.append(own)
        return own

    counts(step_s=0.002, num_calls=FIRST_CALLS + 2 * CALLS_BETWEEN + 1, agree=agree)
    assert len(asked) == 4  # after calls 2, 8, 72 and 136


def test_one_worker_that_watches_batches_keeps_all_from_packing() -> None:
    asked: list[Sequence[float]] = []

    def agree(own: Sequence[float]) -> Sequence[float]:
        asked.append(own)
        return (float("inf"), *own[1:])  # the mean, when one of them is

    assert set(counts(step_s=0.001, num_calls=200, agree=agree)) == {1}
    assert len(asked) == 1

    clock = Clock()
    watched: list[float] = []
    packer = StepPacker(agree=lambda own: watched.append(own[0]) or own, is_free=False, clock=clock)
    for _ in range(FIRST_CALLS + 1):
        packer.next_count(100)
        clock.now_s += 0.001
    assert watched == [float("inf")]


class Saver:
    """Two workers in one process: what one wants, both do after the same call."""

    def __init__(self, *, wants: Callable[[], bool]) -> None:
        self.saves = 0
        self.asked_at_s: list[float] = []
        self.wants = wants

    def pauses(self) -> Pauses:
        return Pauses(limit=lambda: 10_000, wants_save=self.wants, save=self.save)

    def save(self) -> None:
        self.saves += 1


@pytest.mark.parametrize(("packs", "step_s"), [(True, 0.002), (False, 0.002), (False, 0.5), (True, 5.0)])
def test_question_about_saving_comes_about_every_two_seconds(packs: bool, step_s: float) -> None:
    clock, asked_at_s = Clock(), []

    def agree(own: Sequence[float]) -> Sequence[float]:
        asked_at_s.append(clock.now_s)
        return own

    packer = StepPacker(agree=agree, pauses=Saver(wants=lambda: False).pauses(), packs=packs, clock=clock)
    for _ in range(6000):
        clock.now_s += step_s * packer.next_count(10_000)
    gaps = [after - before for before, after in pairwise(asked_at_s)][9:]  # it doubles up to there
    assert min(gaps) > ASK_EVERY_S / 2 - step_s
    assert max(gaps) < ASK_EVERY_S + step_s + 0.1


def test_what_one_worker_wants_all_save_and_between_the_same_calls() -> None:
    wanting, other = Saver(wants=lambda: True), Saver(wants=lambda: False)
    packers = [
        StepPacker(agree=lambda own: (*own[:3], 0.5, *own[4:]), pauses=one.pauses(), clock=Clock())
        for one in (wanting, other)
    ]
    for call in range(1, 4):
        for packer in packers:
            packer.next_count(100)
        expected = 1 if call > FIRST_QUESTION else 0
        assert (wanting.saves, other.saves) == (expected, expected)


def test_worker_without_checkpoints_of_its_own_asks_after_the_same_calls() -> None:
    """As where only the chief's callbacks save."""
    asked: dict[str, list[float]] = {"has": [], "has not": []}
    for name, pauses in (("has", Saver(wants=lambda: False).pauses()), ("has not", None)):
        clock = Clock()

        def agree(
            own: Sequence[float], times: list[float] = asked[name], clock: Clock = clock
        ) -> Sequence[float]:
            times.append(clock.now_s)
            return (0.01, 0.01, 0.5, 0.0, 0.5, 0.0)

        packer = StepPacker(agree=agree, pauses=pauses, clock=clock)
        for _ in range(2000):
            clock.now_s += 0.01 * packer.next_count(100)
    assert asked["has"] == asked["has not"]
    assert len(asked["has"]) > 5


class Keeper:
    """What a worker keeps in memory, and what that costs it."""

    def __init__(self, *, cost_s: float | None) -> None:
        self.schedule = KeepSchedule()
        self.kept_after: list[int] = []
        self.num_calls = 0
        self._cost_s = cost_s

    def pauses(self) -> Pauses:
        return Pauses(
            limit=lambda: 10_000,
            save=lambda: None,
            keep=self.keep,
            keep_cost_s=lambda: None if self._cost_s is None else self.schedule.cost_s,
            agree_on_keeping=lambda cost_s, call_s: self.schedule.agreed(cost_s, call_s=call_s),
        )

    def keep(self) -> None:
        self.num_calls += 1
        self.schedule.called()
        if self.schedule.is_due:
            self.kept_after.append(self.num_calls)
            self.schedule.kept(self._cost_s or 0.0)


def kept_after(*, cost_s: float | None, share: float = 1.0, is_free: bool = True) -> list[int]:
    """Returns after which of 400 calls a state is kept, where that share of the workers keeps any.

    A step takes 0.01 s, and a call 0.1 s where steps are packed.
    """
    clock, keeper = Clock(), Keeper(cost_s=cost_s)

    def agree(own: Sequence[float]) -> Sequence[float]:
        return (*own[:4], own[4] * share, own[5])

    packer = StepPacker(agree=agree, pauses=keeper.pauses(), is_free=is_free, clock=clock)
    for _ in range(400):
        clock.now_s += 0.01 * packer.next_count(10_000)
    return keeper.kept_after


def test_state_that_costs_little_is_kept_after_each_call_once_the_workers_have_agreed() -> None:
    kept = kept_after(cost_s=0.002)
    assert kept[0] == FIRST_QUESTION
    assert kept[-300:] == list(range(100, 400))  # before, a call has a single step


def test_state_that_costs_more_is_kept_less_often() -> None:
    gaps = [after - before for before, after in pairwise(kept_after(cost_s=0.05))]
    assert min(gaps[-5:]) >= round(0.05 / (0.1 * MOST_SHARE)) - 1


def test_state_of_a_single_worker_is_kept_less_often_too_where_a_callback_watches_batches() -> None:
    kept = kept_after(cost_s=0.003, is_free=False)  # 3 ms for each step of 10 ms
    assert {after - before for before, after in pairwise(kept[-5:])} == {10}


def test_nothing_is_kept_any_more_once_the_chief_has_given_up() -> None:
    schedule = KeepSchedule()
    schedule.agreed(0.0, call_s=0.1)
    schedule.called()
    assert schedule.is_due
    schedule.end()
    schedule.agreed(schedule.cost_s, call_s=0.1)
    for _ in range(1000):
        schedule.called()
    assert not schedule.is_due


def test_no_state_is_kept_where_a_worker_cannot_take_part() -> None:
    assert kept_after(cost_s=0.001, share=0.75) == []
    assert kept_after(cost_s=None) == []


def test_a_limit_is_never_overstepped() -> None:
    pauses = Pauses(limit=lambda: 7, save=lambda: None)
    assert max(counts(step_s=0.0001, num_calls=20, agree=alone, pauses=pauses)) == 7


def test_users_steps_per_execution_is_left_alone() -> None:
    packer = StepPacker(
        steps_per_execution=4, agree=alone, packs=False, pauses=Saver(wants=lambda: False).pauses()
    )
    assert [packer.next_count(left) for left in [100] * 20 + [3]] == [4] * 20 + [3]


def test_size_is_bounded() -> None:
    assert max(counts(step_s=1e-7, num_calls=20, agree=alone)) == MAX_STEPS


class Base:
    def on_batch_begin(self) -> None: ...
    def on_batch_end(self) -> None: ...
    def on_train_batch_begin(self) -> None: ...
    def on_train_batch_end(self) -> None: ...


class AtEpochs(Base):
    def on_epoch_end(self) -> None: ...


class AtBatches(Base):
    def on_train_batch_end(self) -> None: ...


class OfRaydist(Hooks):
    def on_train_batch_end(self, batch: int, logs: object = None) -> None: ...


class SavingAtEpochs(Base):
    """What Keras's ModelCheckpoint is."""

    save_freq: int | str = "epoch"

    def on_train_batch_end(self) -> None: ...

    on_train_batch_end.__module__ = "keras.src.callbacks.model_checkpoint"


class SavingAtBatches(SavingAtEpochs):
    save_freq = 10


class SavingAndWatching(SavingAtEpochs):
    def on_train_batch_begin(self) -> None: ...


def lambda_callback(hook: str) -> Base:
    """What Keras's LambdaCallback is: its functions are attributes."""
    callback = Base()
    setattr(callback, hook, lambda *args: None)
    return callback


@pytest.mark.parametrize(
    ("callback", "expected"),
    [
        (AtEpochs(), False),
        (AtBatches(), True),
        (OfRaydist(), False),
        (SavingAtEpochs(), False),
        (SavingAtBatches(), True),
        (SavingAndWatching(), True),
        (lambda_callback("on_epoch_end"), False),
        (lambda_callback("on_train_batch_end"), True),
    ],
)
def test_only_callbacks_with_batch_hooks_watch_batches(callback: Base, expected: bool) -> None:
    assert watches_batches(callback, Base) is expected
