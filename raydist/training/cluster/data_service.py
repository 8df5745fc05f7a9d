"""tf.data service: the servers of a data worker, and how a training task gives them its dataset."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.data.batches import Batches
from raydist.errors import ClusterError, UnsupportedError
from raydist.planning.assignment import TaskAssignment
from raydist.spec.job import Strategy

tf_service = tf.data.experimental.service

_POLICIES = {"dynamic": tf_service.ShardingPolicy.DYNAMIC, "off": tf_service.ShardingPolicy.OFF}


def is_dispatcher(assignment: TaskAssignment) -> bool:
    """Whether this data worker's process is the dispatcher's too."""
    return assignment.address == assignment.data_service


def start_servers(assignment: TaskAssignment, *, worker_port: int) -> list[Any]:
    """Starts this data worker's server and, in the first one's process, the dispatcher before it.

    Returns them; they serve as long as they are held. A worker waits here for its dispatcher.

    Args:
      worker_port: Where the worker listens; the dispatcher listens at the assignment's address.

    Raises:
      ClusterError: A port is taken.
    """
    host, _, port = str(assignment.address).rpartition(":")
    servers: list[Any] = []
    try:
        if is_dispatcher(assignment):
            # A worker of parameter servers that is replaced begins with the first pass. The dispatcher would
            # make one again that it has forgotten, minutes after its end.
            keeps = assignment.strategy is Strategy.PARAMETER_SERVER
            dispatcher = tf_service.DispatcherConfig(
                port=int(port), protocol="grpc", job_gc_timeout_ms=-1 if keeps else None
            )
            servers.append(tf_service.DispatchServer(dispatcher))
        worker = tf_service.WorkerConfig(
            dispatcher_address=assignment.data_service,
            port=worker_port,
            protocol="grpc",
            # Both are localhost otherwise, which training tasks on other hosts cannot connect to.
            worker_address=f"{host}:{worker_port}",
            data_transfer_address=f"{host}:%dts_port%",
        )
        servers.append(tf_service.WorkerServer(worker))
    except tf.errors.OpError as error:
        raise ClusterError(
            f"{assignment.task} cannot start tf.data service at {assignment.address}: {error.message}"
        ) from error
    return servers


def check(dataset: Any, sharding: str) -> None:
    """Raises UnsupportedError for what data workers cannot make."""
    if sharding not in _POLICIES:
        raise UnsupportedError(f"ctx.distribute got sharding={sharding!r}; use {' or '.join(_POLICIES)}")
    if isinstance(dataset, Batches):
        raise UnsupportedError(
            "ctx.distribute got batches of raydist.data, which are read by Python in the training tasks; "
            "give them to ctx.fit as they are, or read the files with a tf.data.Dataset"
        )
    if not isinstance(dataset, tf.data.Dataset):
        raise UnsupportedError(f"ctx.distribute got {type(dataset).__name__}; give a tf.data.Dataset")
    transformations = map(tf_private.transformation_of, tf_private.nodes_of(dataset))
    if sharding == "dynamic" and tf_private.Transformation.REPEAT in transformations:
        raise UnsupportedError(
            "ctx.distribute got a dataset with repeat(), and TensorFlow loses elements between the passes if "
            "data workers divide it; call repeat() after ctx.distribute, or use sharding='off'"
        )


def through(dataset: tf.data.Dataset, *, sharding: str, service: str, name: str | None) -> tf.data.Dataset:
    """Returns what the data workers make of `dataset`.

    Args:
      service: `host:port` of the dispatcher.
      name: Those that give the same one share the elements; None for a task that has all of them. A
        shared dataset names the auto-shard policy `off` (data_service_ops.py, `_from_dataset_id`).
    """
    to_workers = tf_service.distribute(
        processing_mode=_POLICIES[sharding], service=f"grpc://{service}", job_name=name
    )
    return dataset.apply(to_workers)
