"""BatchNormalization's moving statistics, which each replica of Keras 3 keeps for itself."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.layers import BatchNormalization

from raydist.training.cluster.kinds import is_central, is_distributed


def equalize_statistics(model: Any) -> None:
    """Replaces moving statistics by their mean over replicas. Every worker calls it at the same point."""
    strategy = model.distribute_strategy
    if strategy.num_replicas_in_sync == 1 or is_central(strategy):
        return
    if model not in _equalizers:
        _equalizers[model] = _make_equalizer(strategy, _moving_statistics(model))
    _equalizers[model]()


# One traced function per model: an epoch's end shall not trace it anew.
_equalizers: weakref.WeakKeyDictionary[Any, Callable[[], None]] = weakref.WeakKeyDictionary()


def _make_equalizer(strategy: tf.distribute.Strategy, variables: list[tf.Variable]) -> Callable[[], None]:
    if not variables:
        return lambda: None

    @tf.autograph.experimental.do_not_convert
    def average() -> None:
        context = tf.distribute.get_replica_context()
        means = context.all_reduce(
            tf.distribute.ReduceOp.MEAN, [tf.identity(variable) for variable in variables]
        )
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    return tf.function(lambda: strategy.run(average), autograph=False)


def _moving_statistics(model: Any) -> list[tf.Variable]:
    """Float state that layers write while they train. A frozen layer writes none."""
    return [
        variable.value
        for layer in model._flatten_layers()
        if layer.trainable
        for variable in layer._non_trainable_variables
        if variable.dtype.startswith(("float", "bfloat"))
    ]


class EqualStatistics(keras.callbacks.Callback):
    """Makes moving statistics equal before other callbacks (which may save the model) see the epoch's end."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        equalize_statistics(self.model)


def make_with_equal_statistics(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def evaluate_or_predict(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_distributed(self.distribute_strategy):
            equalize_statistics(self)
        return original(self, *args, **kwargs)

    return evaluate_or_predict


def synchronize_batchnorm() -> None:
    """Makes `synchronized=True` the default. Keras reads the signature, so a wrapper would not do."""
    init = BatchNormalization.__init__
    names = init.__code__.co_varnames[: init.__code__.co_argcount][-len(init.__defaults__) :]
    defaults = zip(names, init.__defaults__, strict=True)
    init.__defaults__ = tuple(True if name == "synchronized" else value for name, value in defaults)
