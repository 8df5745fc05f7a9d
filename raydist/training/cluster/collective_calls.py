"""Calls that all workers make together: each meets the others' before it does anything.

TensorFlow pairs what workers exchange by counting. A call that one worker makes alone would wait for ever, or
meet what the others exchange for something else. So each worker numbers what it begins together with the
others, and says where it is. The controller compares that (controller/unequal_calls.py).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.outcome.status import CallState, Collective
from raydist.training.cluster import collectives, kept_totals


class _Calls:
    """The calls of this process that all workers make.

    Attributes:
      tell: Takes where this worker is.
      num_begun: Collectives that have begun.
      depth: How many calls are inside of each other.
    """

    def __init__(self, strategy: tf.distribute.Strategy, tell: Callable[[Collective], None]) -> None:
        self.strategy, self.tell = strategy, tell
        self.num_begun = self.depth = 0
        self.is_meeting = False

    def begins(self, state: CallState, **options: Any) -> None:
        """Tells that another collective begins."""
        self.num_begun += 1
        self.tell(Collective(number=self.num_begun, state=state, **options))

    def exchanges(self, is_running: bool) -> None:
        """Tells that a step, or an exchange of values, begins or has ended."""
        if self.is_meeting:
            return
        self.num_begun += is_running
        state = CallState.INSIDE if self.depth else CallState.BETWEEN
        self.tell(Collective(number=self.num_begun, state=state, is_running=is_running))

    def meet(self, name: str) -> None:
        """Waits until all workers make the call `name`."""
        self.begins(CallState.MEETING, call=name)
        checksum = zlib.crc32(name.encode())
        with tf_private.changed(self, is_meeting=True):
            rows = collectives.gather_over_workers(self.strategy, [checksum], is_meeting=True)
        while any(row != rows[0] for row in rows):
            threading.Event().wait()  # the controller, which sees each worker's line, ends the attempt
        self.depth += 1
        # With another number: a worker of which no news has come yet still seems to wait at this one.
        self.begins(CallState.INSIDE)

    def ends(self) -> None:
        """Tells that a call has returned."""
        self.depth -= 1
        self.exchanges(False)


# One for the process, because the hooks in TensorFlow are the process's.
_calls: _Calls | None = None


def begin(strategy: tf.distribute.Strategy, tell: Callable[[Collective], None]) -> None:
    """Follows the calls of this worker, if there are others.

    Args:
      tell: Called with where this worker stands, before each collective.
    """
    global _calls
    end()
    if not collectives.is_alone(strategy):
        _calls = _Calls(strategy, tell)
        kept_totals.begin(strategy)
        tf_private.CollectiveCalls.begin(strategy, _calls.exchanges)


@contextlib.contextmanager
def made_by_all(name: str, strategy: tf.distribute.Strategy, model: Any = None) -> Iterator[None]:
    """Around a call that all workers make, such as `model.fit`: waits until they do.

    Does nothing for a strategy that this worker has alone.

    Args:
      model: What the call changes, of which each worker can read everything alone after it.
    """
    calls = None if _calls is None or strategy is not _calls.strategy else _calls
    if calls is not None:
        calls.meet(name)
    try:
        with _endings.of_call():
            yield
        if calls is not None:
            keep_totals(model)
    finally:
        if calls is not None:
            calls.ends()


class _Endings:
    """What is done at the end of the outermost call under way."""

    def __init__(self) -> None:
        self._depth = 0
        self._ahead: list[Callable[[], None]] = []

    def add(self, end_call: Callable[[], None]) -> None:
        """Has something done at the end of the outermost call under way, unless that raises: a collective."""
        if self._depth:
            self._ahead.append(end_call)

    @contextlib.contextmanager
    def of_call(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
            for end_call in self._ahead if self._depth == 1 else ():
                end_call()
        finally:
            self._depth -= 1
            if not self._depth:
                self._ahead.clear()


_endings = _Endings()
at_end = _endings.add


def is_inside() -> bool:
    """Whether this worker is inside of a call that all make."""
    return _calls is not None and _calls.depth > 0


# The methods of Keras's models that all workers call, whose owner and Keras the callers know.
METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")
REASON = "a call that one worker makes alone would wait for ever, or meet what others exchange"


def by_all(method: Callable[..., Any]) -> Callable[..., Any]:
    """Has a method of Keras's models wait until all workers call it; the decorator of those in METHODS."""

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        with made_by_all(f"model.{method.__name__}", self.distribute_strategy, self):
            return method(self, *args, **kwargs)

    return called


def keep_totals(model: Any) -> None:
    """Adds up what all replicas hold of a model, so that one worker can read it alone: a collective."""
    if _calls is not None and model is not None and (variables := kept_totals.missing(model)):
        collectives.sums_over_replicas(variables, _calls.strategy)


def end() -> None:
    """Follows nothing any more, at the end of a session."""
    global _calls
    _calls = None
    kept_totals.begin(None)
    tf_private.CollectiveCalls.end()


def leave() -> None:
    """Says that the train function has returned."""
    if _calls is not None:
        _calls.begins(CallState.LEFT)
