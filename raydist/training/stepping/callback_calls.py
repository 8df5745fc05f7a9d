"""Calls Keras callbacks from a training loop that is not Keras's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def in_run_order(callbacks: Sequence[Any]) -> list[Any]:
    """Returns the callbacks of a `fit` with raydist's around the user's, and names the user's to raydist's.

    A user who calls `fit` may have put them anywhere; but what is saved has to be what the others made
    of the epoch, and a counter has to count before they look at it.
    """
    ordered = sorted(callbacks, key=lambda one: getattr(one, "raydist_place", 0))
    users = [one for one in ordered if not hasattr(one, "raydist_place")]
    for one in ordered:
        if hasattr(one, "raydist_place"):
            one.run_around(users)
    return ordered


class CallbackCalls:
    """Calls the hooks of callbacks of either Keras, in their order.

    tf_keras's own CallbackList refuses hooks for batches under ParameterServerStrategy; here they are
    called for each closure that is done, with its last step.
    """

    def __init__(
        self, model: Any, callbacks: Sequence[Any], *, history: Any, params: Mapping[str, Any]
    ) -> None:
        """Takes the callbacks in their order; `history` comes last, so that it has what they add to logs."""
        self._callbacks = callbacks = [*callbacks, history]
        model.stop_training = False
        model.history = history
        for callback in callbacks:
            callback.set_model(model)
            callback.set_params(dict(params))

    def train_begin(self) -> None:
        for callback in self._callbacks:
            callback.on_train_begin({})

    def train_end(self, logs: Mapping[str, float]) -> None:
        for callback in self._callbacks:
            callback.on_train_end(logs)

    def epoch_begin(self, epoch: int) -> None:
        for callback in self._callbacks:
            callback.on_epoch_begin(epoch, {})

    def epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        for callback in self._callbacks:
            callback.on_epoch_end(epoch, logs)

    def batches(self, first: int, last: int, logs: Mapping[str, float]) -> None:
        """Says that the steps from `first` to `last` of the epoch are done."""
        for callback in self._callbacks:
            callback.on_train_batch_begin(first, {})
        for callback in self._callbacks:
            callback.on_train_batch_end(last, logs)

    def test_begin(self) -> None:
        for callback in self._callbacks:
            callback.on_test_begin({})

    def test_end(self, logs: Mapping[str, float]) -> None:
        for callback in self._callbacks:
            callback.on_test_end(logs)
