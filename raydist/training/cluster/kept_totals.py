"""Totals of variables that are synchronized on read, kept so that one worker can read them alone.

TensorFlow adds up such a variable (a metric's, tf_keras's moving statistics) over all workers whenever it is
read outside of a step, so all workers have to read it. Here its total is kept from the first time that all
workers have added it up, until a step changes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private

# Attributes of a variable: its total, with the number of changes before it; and whether functions of the
# user's change it, which run without anybody's notice.
_TOTAL, _IS_USERS = "_raydist_total", "_raydist_is_users"


class _Totals:
    """The kept totals of one strategy's variables.

    Attributes:
      strategy: None where this worker has all replicas, and keeps none.
      num_changes: Calls of steps so far.
      num_traces: How many traces of raydist's are under way; others are the user's.
    """

    def __init__(self, strategy: tf.distribute.Strategy | None = None) -> None:
        self.strategy = strategy
        self.num_changes = self.num_traces = 0


_totals = _Totals()


def begin(strategy: tf.distribute.Strategy | None) -> None:
    """Keeps the totals of a strategy's variables from now on; None where this worker has all replicas."""
    global _totals
    _totals = _Totals(strategy)
    if strategy is not None:
        tf_private.follow_synchronized(_read, assigned)


def _read(variable: Any, reduce_: Callable[[Any], Any]) -> Any:
    if not tf.executing_eagerly():
        return reduce_(variable)
    if not _is_kept(variable):
        keep(variable, value := reduce_(variable))
        return value
    return vars(variable)[_TOTAL][2]


def _has_total(variable: Any) -> bool:
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    if not (is_distributed and tf_private.is_synchronized_on_read(variable)):
        return False
    is_ours = variable.distribute_strategy is _totals.strategy
    return is_ours and variable.aggregation in (tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN)


def _is_kept(variable: Any) -> bool:
    owner, number, _ = vars(variable).get(_TOTAL, (None, None, None))
    is_current = owner is _totals and number == _totals.num_changes
    return is_current and not vars(variable).get(_IS_USERS, False)


@contextlib.contextmanager
def changing() -> Iterator[None]:
    """Around a call of steps, which may change any variable, and in which they are traced first."""
    _totals.num_changes += 1
    with tracing():
        yield


def tracing() -> contextlib.AbstractContextManager[None]:
    """Around a trace that changes no total, or does so in `changing` alone."""
    return tf_private.changed(_totals, num_traces=_totals.num_traces + 1)


def assigned(variable: Any, value: Any) -> None:
    """Says that a value was assigned outside of replicas; None for one that is added to."""
    is_of_replica = tf_private.is_in_replica() or tf_private.is_in_update()
    if is_of_replica or not tf.executing_eagerly():
        if _totals.strategy is not None and not _totals.num_traces:
            vars(variable)[_IS_USERS] = True
    elif value is not None and not np.any(value):
        keep(variable, tf.cast(value, variable.dtype))  # what each worker assigns
    else:  # workers may have assigned other values
        vars(variable).pop(_TOTAL, None)


def keep(variable: Any, total: Any) -> None:
    """Keeps what all workers have found that a variable holds."""
    if _has_total(variable):
        vars(variable)[_TOTAL] = _totals, _totals.num_changes, total


def missing(model: Any) -> list[Any]:
    """Returns the variables of a model and its metrics of which no total is kept."""
    found = {id(one): one for one in _variables_of(model)}
    return [one for one in found.values() if _has_total(one) and not _is_kept(one)]


def _variables_of(model: Any) -> Iterator[Any]:
    for owner in (model, *getattr(model, "metrics", ())):
        try:
            variables = list(owner.variables)
        except (AttributeError, ValueError):  # what is not built has none
            continue
        for variable in variables:
            yield from tf_private.parts_of(variable)
