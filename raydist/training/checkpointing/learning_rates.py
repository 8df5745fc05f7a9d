"""The learning rate of optimizers of either Keras, which a checkpoint has among their variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf


def rate_of(optimizer: Any) -> float | None:
    """Returns the learning rate of an optimizer of either Keras; None where a schedule gives it."""
    # A schedule's rate is the optimizer's own affair; tf_keras shows it as a variable all the same.
    given = getattr(getattr(optimizer, "inner_optimizer", optimizer), "_learning_rate", None)
    if any(base.__name__ == "LearningRateSchedule" for base in type(given).__mro__):
        return None
    rate = getattr(optimizer, "learning_rate", None)
    variable = rate if isinstance(rate, tf.Variable) else getattr(rate, "value", None)
    return float(variable.numpy()) if isinstance(variable, tf.Variable) else None


@contextlib.contextmanager
def kept_rates(trackables: Iterable[Any], *, is_kept: bool) -> Iterator[None]:
    """Leaves the optimizers among `trackables` their rates, whatever their variables are assigned meanwhile.

    Args:
      is_kept: False does nothing.
    """
    rates = [(one, rate) for one in trackables if is_kept and (rate := rate_of(one)) is not None]
    yield
    for optimizer, rate in rates:
        optimizer.learning_rate = rate
