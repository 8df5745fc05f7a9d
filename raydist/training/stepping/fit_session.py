"""FitSession: what belongs to one call of Keras's `fit`.

Keras makes the data handler inside `fit`, so nothing can be passed to it. The patched `fit` enters a session;
what the data handler needs is found in raydist's own callbacks, which are arguments of that very `fit`. An
`evaluate` before it takes nothing away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from raydist.training.input.resume import Resumption, Start
from raydist.training.replicas.accumulation import BatchGroups
from raydist.training.stepping.callbacks import reads_batch_logs
from raydist.training.stepping.packing import Means, Pauses, StepPacker, watches_batches


class FitSession:
    """One call of `fit`.

    Attributes:
      is_nested: Whether it was called inside of another `fit`, by a callback.
      first: Where `fit` begins, once a callback of raydist's knows; None leaves it to Keras.
      resumption: Where the training data begin.
      is_plain: Whether no callback of raydist's keeps that: a `fit` of the user's own.
      groups: Which batches make up each step.
      element_spec: The structure of a batch of the training data, once Keras has them.
      pauses: What may have to happen between two calls; None for nothing.
      is_free: Whether the number of steps of a call is free, as far as this worker knows.
      reads_batch_logs: Whether a callback in any worker reads the logs of training batches.
    """

    def __init__(self, model: Any, callbacks: Any, *, base: type, initial_epoch: int) -> None:
        """Takes the arguments of a `fit`, which begins.

        Args:
          callbacks: A list of them, or a CallbackList of the user's own.
          base: The Callback class of the model's Keras.
        """
        is_list = isinstance(callbacks, list)
        known: Sequence[Any] = callbacks if is_list else callbacks.callbacks
        self.is_nested = _current.get() is not None
        self.first: Start | None = None
        begin = _of_any(known, "begin")
        self.resumption: Resumption = Resumption(Start()) if begin is None else begin(initial_epoch)
        self.is_plain = begin is None
        self.element_spec: Any = None
        self.groups: BatchGroups = _of_any(known, "groups") or BatchGroups()
        pauses = _of_any(known, "pauses")
        self.pauses: Pauses | None = None if pauses is None else pauses()
        # What a user's own CallbackList does at batches is unknown; eager steps are not worth packing.
        is_watched = not is_list or any(watches_batches(one, base) for one in known)
        self.is_free = not is_watched and not model.run_eagerly
        self.reads_batch_logs = reads_batch_logs(known, base, model.distribute_strategy)
        self._is_taken = False
        self._ends = [one.fit_ended for one in known if hasattr(one, "fit_ended")]

    def end(self) -> None:
        """Tells raydist's callbacks that the `fit` is over, whether it has trained to its end or not."""
        for fit_ended in self._ends:
            fit_ended()

    def take(self) -> FitSession | None:
        """Returns itself the first time: the first data handler of a `fit` is that of the training data."""
        is_taken, self._is_taken = self._is_taken, True
        return None if is_taken else self


_current: ContextVar[FitSession | None] = ContextVar("raydist_fit_session", default=None)


@contextmanager
def entered(session: FitSession) -> Iterator[None]:
    """Makes it the current session inside the block."""
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)
        session.end()


def current() -> FitSession | None:
    """Returns the session of the innermost `fit` under way; None outside of every one."""
    return _current.get()


def taken_by_data_handler() -> FitSession | None:
    """Returns the session whose training data the calling data handler has; None in all other handlers."""
    session = _current.get()
    return None if session is None else session.take()


def packer_of(session: FitSession | None, steps_per_execution: int, agree: Means) -> StepPacker:
    """Returns the packer of a data handler, which chooses only in a `fit`, for its training data."""
    if session is None:
        return StepPacker(steps_per_execution=steps_per_execution, packs=False)
    return StepPacker(
        steps_per_execution=steps_per_execution,
        agree=agree,
        packs=steps_per_execution == 1,
        is_free=session.is_free,
        pauses=session.pauses,
    )


def _of_any(callbacks: Sequence[Any], name: str) -> Any:
    """Returns an attribute of the one of raydist's callbacks that has it; None where none has."""
    own = (one for one in callbacks if hasattr(one, "raydist_place"))
    return next((found for one in own if (found := getattr(one, name, None)) is not None), None)
