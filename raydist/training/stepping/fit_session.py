"""FitSession: what belongs to one call of Keras's `fit`.

Keras makes the data handler inside `fit`, so nothing can be passed to it. raydist's `fit` enters a session;
what the data handler needs is found in raydist's own callbacks, which are arguments of that very `fit`. An
`evaluate` before it takes nothing away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

from raydist.training.cluster.collectives import means_over_workers
from raydist.training.input.sources import Source, Start, UncountedSource
from raydist.training.stepping.callbacks import reads_batch_logs
from raydist.training.stepping.hooks import Hooks
from raydist.training.stepping.packing import Pauses, StepPacker, watches_batches


class FitHooks(Hooks):
    """Those that say where a `fit` begins, and what happens between two calls of steps.

    Attributes:
      begin: Takes the first epoch that Keras was given, and returns where the training data begin.
    """

    begin: Callable[[int], Source] | None = None

    def pauses(self) -> Pauses | None:
        """Returns what may have to happen between two calls; None for nothing."""
        return None


class FitSession:
    """One call of `fit`.

    Attributes:
      first: Where `fit` begins, once a callback of raydist's knows; None leaves it to Keras.
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
        hooks = [one for one in known if isinstance(one, FitHooks)]
        self.first: Start | None = None
        begin = next((one.begin for one in hooks if one.begin is not None), None)
        plain = UncountedSource if model.distribute_strategy.num_replicas_in_sync > 1 else Source
        self.source = plain() if begin is None else begin(initial_epoch)
        self.element_spec: Any = None
        self.pauses: Pauses | None = next((found for one in hooks if (found := one.pauses())), None)
        # What a user's own CallbackList does at batches is unknown; eager steps are not worth packing.
        is_watched = not is_list or any(watches_batches(one, base) for one in known)
        self.is_free = not is_watched and not model.run_eagerly
        self.reads_batch_logs = reads_batch_logs(known, base, model.distribute_strategy)
        self._is_taken = False
        self._hooks = [one for one in known if isinstance(one, Hooks)]

    def end(self) -> None:
        """Tells raydist's hooks that the `fit` is over, whether it has trained to its end or not."""
        for one in self._hooks:
            one.fit_ended()

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


def packer_of(session: FitSession | None, steps_per_execution: int, strategy: Any) -> StepPacker:
    """Returns the packer of a data handler, which chooses only in a `fit`, for its training data."""
    if session is None:
        return StepPacker(steps_per_execution=steps_per_execution, packs=False)
    return StepPacker(
        steps_per_execution=steps_per_execution,
        agree=partial(means_over_workers, strategy),
        packs=steps_per_execution == 1,
        is_free=session.is_free,
        pauses=session.pauses,
    )
