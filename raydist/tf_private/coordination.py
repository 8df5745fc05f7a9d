"""The start of a task: the coordination service, and the devices that are its own."""

from __future__ import annotations

import contextlib
import functools
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import mirrored_strategy
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from raydist.errors import UnsupportedError
from raydist.spec.tasks import ClusterSpec, TaskId
from raydist.tf_private.attributes import around, changed

HEARTBEAT_TIMEOUT_S = 20
# For a server that is about to start; TensorFlow waits for those that start later.
_SERVERS_S, _LOOK_AGAIN_S, _ANSWER_S = 10.0, 0.01, 3.0
# More keys than one strategy uses; TensorFlow's own tests of several strategies take as many.
_KEYS_PER_TASK = 100_000


def check_untouched() -> None:
    """Raises UnsupportedError when an op ran before the strategy exists.

    Collectives can be configured only in a fresh context (tensorflow-notes.md#the-context-must-be-untouched).
    """
    if context.context()._context_handle is not None:
        raise UnsupportedError(
            "TensorFlow was used before raydist built the strategy; leave tensors, variables and "
            "tf.config.list_logical_devices() to the train function"
        )


_SETTINGS = (
    *("set_visible_devices", "set_memory_growth", "set_logical_device_configuration"),
    *("intra_op_parallelism_threads", "inter_op_parallelism_threads"),
)


@contextlib.contextmanager
def settled_devices(on_late: Callable[[str], None]) -> Iterator[None]:
    """Lets a program set devices and threads, with no effect, where TensorFlow refuses it once it has begun.

    Args:
      on_late: Called with the name of such a setting.
    """

    def forgiving(name: str, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def set_late(*args: Any, **kwargs: Any) -> None:
            try:
                original(*args, **kwargs)
            except RuntimeError:
                on_late(name)

        return set_late

    of_context: dict[str, Any] = {}
    for name in _SETTINGS:
        found = getattr(context.Context, name)
        is_property = isinstance(found, property)
        new = forgiving(name, found.fset if is_property else found)
        of_context[name] = found.setter(new) if is_property else new
    with changed(context.Context, **of_context):
        yield


def tell_workers(key: str, value: str) -> None:
    """Has other workers know a value, where they have a strategy together."""
    with contextlib.suppress(tf.errors.OpError):
        if context.context()._context_handle is not None:
            context.context().set_config_key_value(key, value)


def told_by_worker(key: str, *, timeout_s: float) -> str | None:
    """Returns what another worker has told, or tells soon; None where that is nothing."""
    with contextlib.suppress(tf.errors.OpError):
        if context.context()._context_handle is not None:
            return str(context.context().get_config_key_value(key, round(1000 * timeout_s)))
    return None


def begin_anew() -> None:
    """Gives a forked process a TensorFlow that has not begun, outside of every scope.

    It has the seed of the one that has, which is kept: deleting it would wait for threads that are not there.
    """
    old = context._context
    if old is not None:
        context._context = None
        new = context.context()
        new._seed, new._rng = old._seed, old._rng
    graphs: Any = ops._default_graph_stack
    _of_parents.append((old, graphs._global_default_graph, [*graphs.stack]))
    graphs._global_default_graph = None
    del graphs.stack[:]


_of_parents: list[Any] = []


def await_servers(addresses: Iterable[str]) -> None:
    """Waits until something listens at each address, for a few seconds at most.

    TensorFlow, which waits by itself, tries again only a second after it was refused
    (`grpc.testing.fixed_reconnect_backoff_ms` in grpc_channel.cc).
    """
    deadline = time.monotonic() + _SERVERS_S
    for address in addresses:
        while time.monotonic() < deadline and not answers(address):
            time.sleep(_LOOK_AGAIN_S)


def answers(address: str) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return True  # a program's own address, in another of gRPC's forms
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_S).close()
    except OSError:
        return False
    return True


def configure_coordination(cluster_spec: ClusterSpec, *, task: TaskId, start_timeout_s: float) -> None:
    """Bounds TensorFlow's start-up barrier, which otherwise waits an hour and names no task.

    Waits for the leader, which is the first task.

    MultiWorkerMirroredStrategy configures the coordination service only where it is not yet
    (collective_all_reduce_strategy.py). With a barrier at registration a missing peer raises
    `DeadlineExceededError … Some timed out task names: …`. See
    tensorflow-notes.md#start-and-the-coordination-service.
    """
    current = context.context()
    if current.coordination_service is not None:
        return  # by an earlier strategy of this process, for the same cluster
    protos = context.coordination_config_pb2  # as TensorFlow imports it: it has moved between 2.18 and 2.19
    jobs = [
        protos.CoordinatedJob(name=task_type.value, num_tasks=len(addresses))
        for task_type, addresses in cluster_spec.jobs
    ]
    current.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0].name}/replica:0/task:0",
        coordinated_jobs=jobs,
        cluster_register_timeout_in_ms=int(start_timeout_s * 1000),
        heartbeat_timeout_in_ms=HEARTBEAT_TIMEOUT_S * 1000,
    )
    # A public field of the proto, for which configure_coordination_service has no argument; without
    # it the time-out does not bound the leader. TensorFlow 2.18 has no such field.
    if _has_barrier():
        current._coordination_service_config.cluster_register_with_barrier = True
    if task.index:
        await_servers(cluster_spec.jobs[0][1][:1])


def _has_barrier() -> bool:
    config = context.coordination_config_pb2.CoordinationServiceConfig
    return "cluster_register_with_barrier" in config.DESCRIPTOR.fields_by_name


def missing_parts() -> list[str]:
    """Returns what raydist does without because this TensorFlow has no such part, one sentence for each."""
    if _has_barrier():
        return []
    lost = "a task that does not start is named at --start-timeout, by raydist alone"
    return [f"TensorFlow {tf.__version__} has no barrier at registration: {lost}"]


def report_error_to_peers(message: str) -> None:
    """Makes every collective of the peers fail at once with `message`.

    A peer that raised but whose process lives is otherwise waited for without end
    (tensorflow-notes.md#a-worker-that-fails).
    """
    current = context.context()
    if current.coordination_service is not None:
        # Where a peer's failure came first the service is gone, and TensorFlow raises.
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            current.report_error_to_cluster(2, message[:1000])


def keep_mirrored_local(task: TaskId) -> None:
    """Lets a MirroredStrategy that a job makes in a task of several workers use this task's devices alone.

    `MirroredStrategy()` takes every device that `list_logical_devices` returns, which are those of all
    workers, and copying a tensor to another worker's device ends the process with SIGSEGV
    (mirrored_strategy.py, `all_local_devices`). The collectives of all workers share one table of group
    keys, in which groups of different strategies must not have the same key.
    """
    prefix = f"/job:{task.task_type.value}/replica:0/task:{task.index}/"

    @around(mirrored_strategy, "all_local_devices")
    def own_devices(all_local_devices: Any, num_gpus: int | None = None) -> list[Any]:
        gpus = [device for device in tf.config.list_logical_devices("GPU") if device.name.startswith(prefix)]
        cpus = [device for device in tf.config.list_logical_devices("CPU") if device.name.startswith(prefix)]
        # Under other names there would be none: then it is TensorFlow's to choose.
        return gpus[:num_gpus] or cpus or all_local_devices(num_gpus)

    tf.distribute.MirroredStrategy._collective_key_base = (1 + task.index) * _KEYS_PER_TASK
