"""Builds the tf.distribute strategy of one task, in the only order that TensorFlow allows."""

from __future__ import annotations

import signal

import tensorflow as tf

from raydist.errors import ClusterError
from raydist.planning.assignment import TaskAssignment
from raydist.spec.job import Strategy
from raydist.strategies import tensorflow_internals


def build_strategy(assignment: TaskAssignment, *, start_timeout_s: float) -> tf.distribute.Strategy:
    """Returns the strategy that `assignment` names. Runs in the main thread, before any other op.

    Raises:
      ClusterError: The devices are not those that the plan counted on, or a peer did not come.
      UnsupportedError: TensorFlow was used before.
    """
    tensorflow_internals.check_untouched()
    if assignment.devices is not None:
        _split_cpu(assignment.devices)
    match assignment.strategy:
        case Strategy.ONE_DEVICE:
            return tf.distribute.OneDeviceStrategy(_devices(assignment)[0])
        case Strategy.MIRRORED:
            return _checked(tf.distribute.MirroredStrategy(_devices(assignment)), len(_devices(assignment)))
        case Strategy.CENTRAL_STORAGE:
            devices = _devices(assignment)
            return _checked(
                tf.distribute.experimental.CentralStorageStrategy(
                    compute_devices=devices, parameter_device="/cpu:0"
                ),
                len(devices),
            )
        case Strategy.TPU:
            return _tpu(assignment)
        case Strategy.MULTI_WORKER_MIRRORED:
            return _multi_worker(assignment, start_timeout_s=start_timeout_s)
        case _:
            raise ClusterError(f"strategy {assignment.strategy.value} is not available yet")


def _split_cpu(num_devices: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)


def _devices(assignment: TaskAssignment) -> list[str]:
    if assignment.num_gpus:
        return [f"/gpu:{index}" for index in range(assignment.num_gpus)]
    return [f"/cpu:{index}" for index in range(assignment.devices or 1)]


def _multi_worker(assignment: TaskAssignment, *, start_timeout_s: float) -> tf.distribute.Strategy:
    tensorflow_internals.configure_coordination(assignment.cluster_spec, start_timeout_s=start_timeout_s)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.DeadlineExceededError as error:
        raise ClusterError(
            f"not all tasks joined the TensorFlow cluster within {start_timeout_s:.0f} s: {error.message}"
        ) from error
    finally:
        # TensorFlow's preemption notifier takes SIGTERM away below Python, which still shows the old
        # handler (TF_NOTES 4.4): set it again. Only the main thread may.
        signal.signal(signal.SIGTERM, handler if handler is not None else signal.SIG_DFL)
    return _checked(strategy, assignment.num_workers * max(assignment.num_gpus, 1))


def _tpu(assignment: TaskAssignment) -> tf.distribute.Strategy:
    """Connects as TensorFlow's TPU guide does. Written by the documentation, not run on hardware."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=assignment.tpu_name)
        if assignment.tpu_name != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except (ValueError, tf.errors.OpError) as error:
        raise ClusterError(f"no TPU at {assignment.tpu_name}: {error}") from error
    return tf.distribute.TPUStrategy(resolver)


def _checked(strategy: tf.distribute.Strategy, expected: int) -> tf.distribute.Strategy:
    # With an empty cluster or hidden GPUs TensorFlow silently builds a smaller strategy (TF_NOTES 4.1).
    if strategy.num_replicas_in_sync != expected:
        raise ClusterError(
            f"{type(strategy).__name__} has {strategy.num_replicas_in_sync} replicas, planned were "
            f"{expected}; compare the GPUs that each host shows with those that Ray counts"
        )
    return strategy
