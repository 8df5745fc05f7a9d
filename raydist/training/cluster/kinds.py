"""Which kind of strategy one is, where that decides."""

from __future__ import annotations

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.cluster.virtual_strategy import is_virtual


def is_distributed(strategy: tf.distribute.Strategy) -> bool:
    """Whether a model was made in a strategy's scope; others are left as Keras has them."""
    return not tf_private.is_default(strategy)


def is_parameter_server(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def is_central(strategy: tf.distribute.Strategy) -> bool:
    """Whether the replicas share variables on one device."""
    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)


def shares_variables(strategy: tf.distribute.Strategy) -> bool:
    """Whether several replicas of a process share its weights and optimizer."""
    return is_central(strategy) or is_virtual(strategy)


def only_cpu_replica(strategy: tf.distribute.Strategy) -> int | None:
    """Returns the number of this worker's replica among all, if it has only one, on its CPU; else None."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return None
    devices = strategy.extended.worker_devices
    if len(devices) != 1 or tf.DeviceSpec.from_string(devices[0]).device_type != "CPU":
        return None
    number = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    return int(strategy.experimental_local_results(number)[0])
