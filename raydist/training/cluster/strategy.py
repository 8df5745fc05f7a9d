"""Builds the tf.distribute strategy of one task, in the only order that TensorFlow allows.

Also tells which kind a strategy is, where that decides.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import signal
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import ClusterError, UnsupportedError
from raydist.planning.assignment import TaskAssignment
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.partitioner import Partitioner
from raydist.spec.tasks import TaskType
from raydist.training.cluster import collectives
from raydist.training.cluster.virtual_strategy import VirtualReplicasStrategy, is_virtual


def is_distributed(strategy: tf.distribute.Strategy) -> bool:
    """Whether a model was made in a strategy's scope; others are left as Keras has them."""
    return not tf_private.is_default(strategy)


def is_parameter_server(strategy: tf.distribute.Strategy) -> bool:
    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def is_central(strategy: tf.distribute.Strategy) -> bool:
    """Whether the replicas share variables on one device."""
    return isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)


def scope_to_build(
    model: Any, strategy: tf.distribute.Strategy | None
) -> contextlib.AbstractContextManager[Any]:
    """Returns the scope in which to build a model that was made in one, where none is entered.

    A model that is called, or built, outside of the scope would get variables that no replica can update.

    Args:
      strategy: That of the scope in which it was made; None for none.
    """
    is_outside = tf.executing_eagerly() and not tf.distribute.has_strategy()
    if strategy is None or model.built or not is_outside or not is_distributed(strategy):
        return contextlib.nullcontext()
    return strategy.scope()


def shares_variables(strategy: tf.distribute.Strategy) -> bool:
    """Whether several replicas of a process share its weights and optimizer."""
    return is_central(strategy) or is_virtual(strategy)


def only_cpu_replica(strategy: tf.distribute.Strategy) -> int | None:
    """Returns the number of this worker's replica among all, if it has only one, on its CPU; else None."""
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return None
    devices = strategy.extended.worker_devices
    if len(devices) != 1 or tf.DeviceSpec.from_string(devices[0]).device_type != "CPU":
        return None
    if strategy.num_replicas_in_sync == 1:
        return 0
    number = strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(context.replica_id_in_sync_group)
    )
    return int(strategy.experimental_local_results(number)[0])


_COMPRESSIONS = {"none": None, "fp16": tf.float16, "bf16": tf.bfloat16}
_CROSS_DEVICE_OPS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical": tf.distribute.HierarchicalCopyAllReduce,
    "one_device": tf.distribute.ReductionToOneDevice,
}


def options_of(job: JobSpec) -> tf.distribute.experimental.CommunicationOptions:
    """Returns what MultiWorkerMirroredStrategy takes."""
    return tf.distribute.experimental.CommunicationOptions(
        timeout_seconds=job.collective_timeout,
        implementation=tf.distribute.experimental.CommunicationImplementation[job.collective.upper()],
    )


def compression_of(job: JobSpec) -> tf.DType | None:
    """Returns the type that gradients are rounded to before their sum; None for their own."""
    return _COMPRESSIONS[job.compress_gradients]


# TensorFlow's own (sharded_variable.py, MinSizePartitioner).
DEFAULT_MIN_SHARD_BYTES = 256 << 10


@dataclass(frozen=True)
class TaskStrategy:
    """The strategy of one task, and its coordinator, which is None except under ParameterServer."""

    strategy: tf.distribute.Strategy
    coordinator: Any = None


def build_strategy(assignment: TaskAssignment) -> tf.distribute.Strategy:
    """Returns the strategy that `assignment` names. Runs in the main thread, before any other op.

    Raises:
      ClusterError: The devices are not those that the plan counted on, or a peer did not come.
      UnsupportedError: TensorFlow was used before.
    """
    tf_private.check_untouched()
    split_devices(assignment)
    return new_strategy(assignment)


def new_strategy(assignment: TaskAssignment) -> tf.distribute.Strategy:
    """Returns the strategy, where the devices are split; raises ClusterError as `build_strategy` does."""
    job, devices, task_type = assignment.job, _devices(assignment), assignment.task.task_type
    if job.virtual_replicas is not None and task_type is TaskType.WORKER:
        return _virtual(assignment)
    made: tf.distribute.Strategy
    match assignment.strategy:
        case Strategy.ONE_DEVICE:
            return tf.distribute.OneDeviceStrategy(devices[0])
        case Strategy.MIRRORED:
            reduction = _CROSS_DEVICE_OPS.get(job.cross_device_ops, lambda: None)()
            made = tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)
        case Strategy.CENTRAL_STORAGE:
            made = tf.distribute.experimental.CentralStorageStrategy(devices, parameter_device="/cpu:0")
        case Strategy.TPU:
            return _tpu(assignment)
        case _ if task_type is TaskType.EVALUATOR and len(devices) == 1:
            return tf.distribute.OneDeviceStrategy(devices[0])
        case _ if task_type is TaskType.EVALUATOR:
            made = tf.distribute.MirroredStrategy(devices)
        case Strategy.MULTI_WORKER_MIRRORED:
            with joining_workers(assignment):
                made = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options_of(job))
            return check_replicas(made, assignment.num_workers * max(assignment.num_gpus, 1))
        case Strategy.PARAMETER_SERVER:
            return _parameter_server(assignment)
        case Strategy.AUTO:
            raise AssertionError("the plan has chosen a strategy")
    return check_replicas(made, len(devices))


def build_coordinator(
    strategy: tf.distribute.Strategy,
) -> tf.distribute.coordinator.ClusterCoordinator | None:
    """Returns the ClusterCoordinator of a ParameterServerStrategy; None for any other strategy."""
    if not isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return None
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


def split_devices(assignment: TaskAssignment) -> None:
    """Makes the logical devices that the task is to have. Before TensorFlow is used."""
    if assignment.devices is None:
        return
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * assignment.devices
    )


def _devices(assignment: TaskAssignment) -> list[str]:
    if assignment.num_gpus:
        return [f"/gpu:{index}" for index in range(assignment.num_gpus)]
    return [f"/cpu:{index}" for index in range(assignment.devices or 1)]


def _virtual(assignment: TaskAssignment) -> tf.distribute.Strategy:
    job = assignment.job
    assert job.virtual_replicas is not None
    build = functools.partial(VirtualReplicasStrategy, job.virtual_replicas, options=options_of(job))
    if assignment.strategy is not Strategy.MULTI_WORKER_MIRRORED:
        return build(devices=_devices(assignment))
    with joining_workers(assignment):
        return build(shares=assignment.shares)


def compute_in_fixed_order(job: JobSpec) -> None:
    """Has TensorFlow compute a virtual replica in the same way in every worker. Before it is used.

    The number of threads of an operation decides how Eigen and oneDNN divide its sums. Grappler's arithmetic
    optimizer joins the additions of a graph, which are others in each worker (arithmetic_optimizer.cc,
    `AddOpsRewriteStage`).
    """
    if job.virtual_replicas is None:
        return
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})


def note_on_processors(strategy: tf.distribute.Strategy) -> str | None:
    """Returns a sentence if the workers of virtual replicas have different kinds of CPU. A collective.

    oneDNN and Eigen choose how they compute by what a CPU can do.
    """
    if not is_virtual(strategy) or collectives.is_alone(strategy):
        return None
    rows = collectives.gather_over_workers(strategy, [zlib.crc32(_processor_features().encode())])
    if not (unlike := collectives.inconsistent_names(rows)):
        return None
    return (
        f"the CPU of {unlike} has other features than that of the other workers, "
        "so results may depend on which worker computes a virtual replica; choose hosts of one kind, for "
        "example by --label-selector"
    )


def _processor_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no Linux
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


@contextlib.contextmanager
def joining_workers(assignment: TaskAssignment) -> Iterator[None]:
    """Around the construction of the MultiWorkerMirroredStrategy of all workers. In the main thread.

    Raises:
      ClusterError: A peer did not come in time.
    """
    start_timeout_s = assignment.job.start_timeout
    tf_private.configure_coordination(
        assignment.cluster_spec, task=assignment.task, start_timeout_s=start_timeout_s
    )
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except tf.errors.DeadlineExceededError as error:
        raise ClusterError(
            f"not all tasks joined the TensorFlow cluster within {start_timeout_s:.0f} s: {error.message}"
        ) from error
    finally:
        # TensorFlow's preemption notifier takes SIGTERM away below Python, which still shows the old
        # handler: set it again. Only the main thread may.
        signal.signal(signal.SIGTERM, handler if handler is not None else signal.SIG_DFL)
    tf_private.keep_mirrored_local(assignment.task)


def _parameter_server(assignment: TaskAssignment) -> tf.distribute.Strategy:
    """Connects to the servers of all workers and ps; waits for those that are not up yet."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    partitioner = _partitioner(assignment.job.partitioner, num_ps=assignment.num_ps)
    try:
        strategy = tf.distribute.ParameterServerStrategy(resolver, variable_partitioner=partitioner)
    except ValueError as error:
        if "Mismatched number of GPUs" not in str(error):
            raise
        raise UnsupportedError(
            "the workers see different numbers of GPUs, and parameter_server needs the same number in each; "
            f"give --gpus a number that each host has (planned: {assignment.gpus_per_worker})"
        ) from error
    return check_replicas(strategy, max(assignment.gpus_per_worker, 1))


def _partitioner(asked: Partitioner | None, *, num_ps: int) -> Any:
    """Returns TensorFlow's partitioner; whole numbers (counters, states of generators) stay whole."""
    partitioners = tf.distribute.experimental.partitioners
    if asked is None:
        return None
    if asked.fixed_shards is not None:
        chosen = partitioners.FixedShardsPartitioner(asked.fixed_shards)
    else:
        chosen = partitioners.MinSizePartitioner(
            min_shard_bytes=asked.min_shard_bytes or DEFAULT_MIN_SHARD_BYTES,
            max_shards=asked.max_shards or num_ps,
        )

    def partition(shape: tf.TensorShape, dtype: tf.DType, **options: Any) -> Any:
        # tf.random.Generator refuses a sharded state (stateful_random_ops.py, `_create_variable`).
        return chosen(shape, dtype, **options) if dtype.is_floating else [1] * shape.rank

    return partition


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


def check_replicas(strategy: tf.distribute.Strategy, expected: int) -> tf.distribute.Strategy:
    """Returns the strategy; raises ClusterError unless it has as many replicas as were planned."""
    # With an empty cluster or hidden GPUs TensorFlow silently builds a smaller strategy.
    if strategy.num_replicas_in_sync != expected:
        raise ClusterError(
            f"{type(strategy).__name__} has {strategy.num_replicas_in_sync} replicas, planned were "
            f"{expected}; compare the GPUs that each host shows with those that Ray counts"
        )
    return strategy
