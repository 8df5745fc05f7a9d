"""ClusterCoordinator: what each worker has of its own, and the functions that it is given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import input_lib
from tensorflow.python.distribute.coordinator import values
from tensorflow.python.ops import gen_script_ops, script_ops

from raydist.tf_private.attributes import changed
from raydist.tf_private.functions import inlined_functions


def per_worker_iterators(
    coordinator: Any,
    strategy: tf.distribute.Strategy,
    pipelines: Sequence[tuple[Any, tuple[tf.Tensor, ...]]],
) -> Any:
    """Makes an iterator in each worker's own process, and again when a worker comes back.

    `ClusterCoordinator.create_per_worker_dataset` makes the same dataset for all workers, and its
    InputContext says that there is one (parameter_server_strategy_v2.py,
    `_distribute_datasets_from_function`); here each worker's knows its number.

    Args:
      pipelines: For each worker a concrete function that returns its dataset, and its arguments.

    Returns:
      The iterators, to be given to `coordinator.schedule`.
    """
    remote_values = []
    for worker, (make, args) in zip(coordinator._cluster.workers, pipelines, strict=True):
        remote_value = worker.create_resource(lambda make=make, args=args: iter(make(*args)))
        # As in coordinator/values.py, PerWorkerDatasetFromDatasetFunction.__iter__.
        dataset = make.structured_outputs
        remote_value._type_spec = input_lib.get_iterator_spec_from_dataset(strategy, dataset)
        remote_values.append(remote_value)
    return values.PerWorkerDistributedIterator(tuple(remote_values))


def remake(dataset: tf.data.Dataset) -> tuple[Callable[[], tf.data.Dataset], bool] | None:
    """Returns a function that makes a dataset again in the process that runs it, as its graph says.

    And whether that is all of it: Python's part stays here. None if its graph is too large for a message
    (2 GB). As in coordinator/values.py, PerWorkerDatasetFromDataset.
    """
    graph, spec = values.serialize_dataset_to_graph(dataset), dataset.element_spec
    if not graph.numpy():  # TensorFlow raises nothing
        return None
    definition = tf.compat.v1.GraphDef.FromString(graph.numpy())
    nodes = [definition.node, *(function.node_def for function in definition.library.function)]
    is_whole = not any("PyFunc" in node.op for part in nodes for node in part)
    return lambda: values.deserialize_dataset_from_graph(graph, spec), is_whole


def worker_numbers(coordinator: Any) -> Any:
    """Makes each worker's number (scalar int32), to be given to `coordinator.schedule`."""
    remote_values = []
    for index, worker in enumerate(coordinator._cluster.workers):
        remote_value = worker.create_resource(lambda index=index: tf.constant(index, tf.int32))
        remote_value._type_spec = tf.TensorSpec([], tf.int32)
        remote_values.append(remote_value)
    return values.PerWorkerValues(tuple(remote_values))


def register(name: str, function: Callable[..., Any]) -> None:
    """Lets `call_registered` call a function of this process, for as long as the process lives."""
    _registered[name] = function
    script_ops._py_funcs._funcs[name] = function  # which holds it weakly


_registered: dict[str, Callable[..., Any]] = {}


def call_registered(name: str, inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]) -> Sequence[tf.Tensor]:
    """Calls, with NumPy arrays, what is registered as `name` in the process that runs the op.

    `tf.numpy_function` pins its op to the process that makes the graph
    (tensorflow-notes.md#clustercoordinator).
    """
    return gen_script_ops.py_func(input=list(inputs), token=name, Tout=list(types))


def spec_of(per_worker_values: Any) -> Any:
    """Returns the type of one worker's value, for tracing."""
    return per_worker_values._values[0]._type_spec


def is_fetched(remote_value: Any) -> bool:
    """Whether a scheduled function is done and its result is on the coordinator.

    A `RemoteValue` can only be waited for, one after the other, and while a result is still on its
    way from a worker that dies, waiting raises although the function is about to be run again.
    """
    return bool(remote_value._has_fetched_to_local)


@contextlib.contextmanager
def traced_for_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Says that what is traced inside is meant for the workers, as `ClusterCoordinator.schedule` does.

    Otherwise TensorFlow warns of each `strategy.run` that it might run on the coordinator. In the
    scope, because an optimizer may make its variables while a step is traced. Functions are inlined: an
    optimizer does not work in a nested one, and a trace would hold what one closure has read.
    """
    with changed(strategy.extended, _being_scheduled=True), strategy.scope(), inlined_functions():
        yield
