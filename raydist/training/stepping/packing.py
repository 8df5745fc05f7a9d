"""Packs several training steps into one call where nothing looks at the steps in between.

Between two calls Keras runs Python for each step: callbacks, logs, the launch of a `tf.function`. For
a small model that takes as long as the step. Where the user compiled with one step per
execution and no callback watches batches, the number of steps per call is free, as long as all
workers choose the same: a collective gets its instance key once a call, however many steps the call
has (cross_device_utils.py, `_next_instance_key`), so unequal calls would wait for each other for ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.training.stepping.hooks import Hooks
from raydist.training.user_code.bytecode import does_nothing
from raydist.training.user_code.code_names import is_keras

Means = Callable[[Sequence[float]], Sequence[float]]

TARGET_CALL_S = 0.1
MAX_STEPS = 256
# The first calls trace; by then the time of a step is known. Then it is looked at again from time to time.
FIRST_CALLS = 8
CALLS_BETWEEN = 64
# A checkpoint that one worker wants is saved within about this time, and the question costs 1 to 4 ms.
ASK_EVERY_S = 2.0
FIRST_QUESTION = 2
MAX_CALLS_BETWEEN = 4096
MANY_STEPS = 1 << 30  # where nothing is due
_ALL = 0.9999  # of a share of all workers, which is rounded
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
_TEST_BATCH_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """What may have to happen between two calls of a `fit`.

    Attributes:
      limit: Returns the steps until something is due, at least 1; alike in every worker.
      wants_save: Whether this worker wants a checkpoint; None where there is nothing to ask.
      save: Saves. Called in every worker after the same call, once one of them wants it.
      keep: Keeps the state in memory where that is due. Called in every worker after each call.
      keep_cost_s: Returns what that has cost this worker; None where it keeps none.
      agree_on_keeping: Takes the mean of that over all workers, and the seconds of a call, if all keep.
    """

    limit: Callable[[], int] = lambda: MANY_STEPS
    wants_save: Callable[[], bool] | None = None
    save: Callable[[], None] = lambda: None
    keep: Callable[[], None] = lambda: None
    keep_cost_s: Callable[[], float | None] = lambda: None
    agree_on_keeping: Callable[[float, float], None] = lambda cost_s, call_s: None


class StepPacker:
    """Chooses how many steps go into the next call, and lets the workers save between two calls.

    Args:
      agree: Returns the means of some numbers over all workers. Called after the same calls in each:
        until the first answer no worker knows what the others have to ask.
      packs: Whether the number of steps is free; the user has not chosen it.
      is_free: Whether this worker has no callback that watches batches. One that has keeps all others from
        packing too; a callback that only the chief has is such a case.
    """

    def __init__(
        self,
        *,
        steps_per_execution: int = 1,
        agree: Means | None = None,
        packs: bool = True,
        is_free: bool = True,
        pauses: Pauses | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._size = steps_per_execution
        self._agree = agree
        self._packs = packs
        self._is_free = is_free
        self._pauses = pauses or Pauses()
        self._clock = clock
        self._num_calls = 0
        self._ask_after = self._calls_between = FIRST_QUESTION
        self._asked_at_s: float | None = None
        self._fastest_step_s = float("inf")
        self._last: tuple[float, int] | None = None  # when the last call began, and its steps

    def next_count(self, left: int) -> int:
        """Returns the number of steps of the next call, at least 1 and at most `left`."""
        if self._agree is not None and self._last is not None:
            began_at_s, count = self._last
            self._fastest_step_s = min(self._fastest_step_s, (self._clock() - began_at_s) / count)
            self._num_calls += 1
            if self._num_calls == self._ask_after:
                self._ask(self._agree)
        if self._last is not None:
            self._pauses.keep()
        count = max(1, min(self._size, left, self._pauses.limit()))
        self._last = (self._clock(), count)
        if self._asked_at_s is None:
            self._asked_at_s = self._clock()
        return count

    def _ask(self, agree: Means) -> None:
        """Asks the other workers; what follows depends on their answer alone, so that all do the same."""
        wants_save = self._pauses.wants_save
        call_s = (self._clock() - (self._asked_at_s or 0.0)) / self._calls_between
        step_s = self._fastest_step_s if self._is_free and self._packs else float("inf")
        cost_s = self._pauses.keep_cost_s()
        wants = float(wants_save is not None), float(wants_save is not None and wants_save())
        keeps = float(cost_s is not None), cost_s or 0.0
        step_s, call_s, may_save, is_wanted, keeping, keep_cost_s = agree((step_s, call_s, *wants, *keeps))
        size_before = self._size
        self._packs = self._packs and step_s < float("inf")
        if self._packs and self._num_calls >= FIRST_CALLS:
            self._size = max(1, min(int(TARGET_CALL_S / step_s), MAX_STEPS)) if step_s > 0 else MAX_STEPS
        self._plan_next(call_s * self._size / size_before, may_ask=may_save > 0 or keeping > _ALL)
        if keeping > _ALL:
            self._pauses.agree_on_keeping(keep_cost_s, call_s * self._size / size_before)
        if is_wanted > 0:
            self._pauses.save()
        self._fastest_step_s = float("inf")
        self._asked_at_s = self._clock()

    def _plan_next(self, call_s: float, *, may_ask: bool) -> None:
        """Plans the next question, which is `call_s` seconds long calls away from this one."""
        if not may_ask and not self._packs:
            self._agree = None  # in every worker, so no worker asks again
            return
        if may_ask:
            # At most twice as many calls as the last time: the first ones say little about the later ones.
            wanted = int(ASK_EVERY_S / call_s) if call_s > 0 else MAX_CALLS_BETWEEN
            self._calls_between = max(1, min(wanted, 2 * self._calls_between, MAX_CALLS_BETWEEN))
        else:
            self._calls_between = (
                CALLS_BETWEEN if self._num_calls >= FIRST_CALLS else FIRST_CALLS - self._num_calls
            )
        self._ask_after = self._num_calls + self._calls_between


def watches_batches(callback: Any, base: type) -> bool:
    """Whether a callback has something to do at each batch. raydist's own ones take several at once."""
    if isinstance(callback, Hooks):
        return False
    found = (batch_hook_of(callback, hook, base) for hook in _BATCH_HOOKS)
    functions = [one.function for one in found if one is not None]
    if getattr(callback, "save_freq", None) == "epoch":  # Keras's hooks then do nothing
        return not all(map(is_keras, functions))
    return bool(functions)


def hooks_of_test_batches(callback: Any, base: type) -> list[str]:
    """Returns the names of the hooks that a user's callback has for each batch of a validation."""
    if isinstance(callback, Hooks):
        return []
    found = {name: batch_hook_of(callback, name, base) for name in _TEST_BATCH_HOOKS}
    return [
        name
        for name, hook in found.items()
        if hook is not None and not is_keras(hook.function) and not does_nothing(hook.function)
    ]


@dataclass(frozen=True, kw_only=True)
class BatchHook:
    """A batch hook that a callback overrides.

    Attributes:
      is_of_class: Whether its class defines it, so that it takes `self` first. A LambdaCallback's hooks are
        attributes of the instance.
    """

    function: Any
    is_of_class: bool


def batch_hook_of(callback: Any, name: str, base: type) -> BatchHook | None:
    """Returns the hook of that name that a callback has; None for the one of the base class."""
    own = getattr(callback, "__dict__", {})
    if name in own:
        return BatchHook(function=own[name], is_of_class=False)
    hook = getattr(type(callback), name, None)
    return None if hook is getattr(base, name, None) else BatchHook(function=hook, is_of_class=True)
