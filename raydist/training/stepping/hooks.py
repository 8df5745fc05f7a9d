"""Hooks: what raydist does at the hooks of a `fit`, before the user's callbacks or after them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Hooks:
    """A callback of either Keras that does nothing: both take any object with these methods for one.

    Attributes:
      place: Where it runs: below 0 before the user's callbacks, above 0 after them.
      model: Set by Keras, as `params` is.
    """

    place = 0.0
    model: Any = None
    params: dict[str, Any]
    # tf_keras: logs as tensors, which are read only when they are reported; without it parameter_server
    # refuses batch hooks.
    _supports_tf_logs = True

    def set_model(self, model: Any) -> None:
        self.model = model

    def set_params(self, params: dict[str, Any]) -> None:
        self.params = params

    def run_around(self, callbacks: Sequence[Any]) -> None:
        """Takes the user's callbacks of the `fit`."""

    def fit_ended(self) -> None:
        """Called by the `fit_session`, also when an exception ends the `fit`."""

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        pass

    on_train_begin = on_train_end = on_epoch_begin = on_epoch_end = _nothing
    on_batch_begin = on_batch_end = on_train_batch_begin = on_train_batch_end = _nothing
    on_test_begin = on_test_end = on_test_batch_begin = on_test_batch_end = _nothing
    on_predict_begin = on_predict_end = on_predict_batch_begin = on_predict_batch_end = _nothing

    def _implements_batch_hooks(self) -> bool:
        return True

    # tf_keras asks for them.
    _implements_train_batch_hooks = _implements_test_batch_hooks = _implements_batch_hooks
    _implements_predict_batch_hooks = _implements_batch_hooks


def in_run_order(callbacks: Sequence[Any]) -> list[Any]:
    """Returns the callbacks of a `fit` with raydist's around the user's.

    A user who calls `fit` may have put them anywhere; but what is saved has to be what the others made
    of the epoch, and a counter has to count before they look at it.
    """
    return sorted(callbacks, key=lambda one: one.place if isinstance(one, Hooks) else 0.0)


def users_of(callbacks: Sequence[Any]) -> list[Any]:
    """Returns those that are not raydist's."""
    return [one for one in callbacks if not isinstance(one, Hooks)]
