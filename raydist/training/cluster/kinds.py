"""Which kind of strategy one is, where that decides."""

from __future__ import annotations

import tensorflow as tf

from raydist.training import tf_private


def is_distributed(strategy: tf.distribute.Strategy) -> bool:
    """Whether a model was made in a strategy's scope; others are left as Keras has them."""
    return not tf_private.is_default(strategy)


def is_parameter_server(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def is_central(strategy: tf.distribute.Strategy) -> bool:
    """Whether the replicas share variables on one device."""
    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
