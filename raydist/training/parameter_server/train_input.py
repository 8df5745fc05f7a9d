"""The workers' input under ParameterServer: each worker runs the pipeline in its own process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.data import pipeline
from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.input import train_data
from raydist.training.parameter_server.sources import SharedSources
from raydist.training.reporting import reporter
from raydist.training.trainers.base import TaskRun


class Feed(Protocol):
    """What a closure is given, and how it makes an iterator of that.

    Attributes:
      element_spec: The structure of one replica's batch.
      specs: Types of a closure's arguments for the data.
      is_outdated: Whether it has to be renewed, since other workers share the data now.
    """

    element_spec: Any
    specs: tuple[Any, ...]

    @property
    def is_outdated(self) -> bool: ...

    def renew(self, done: int) -> None:
        """Divides the data among the workers that there are now, while no closure is under way.

        Args:
          done: Steps that all workers together have done since the data were read first.
        """

    def arguments(self, first_step: int, num_steps: int) -> tuple[Any, ...]:
        """Returns the arguments of the closure that runs some steps of the `fit`."""

    def iterator(self, *arguments: Any) -> Any:
        """Returns the iterator, inside the closure."""


class IteratorFeed:
    """Each worker goes through an iterator of its own, for all steps that it is given."""

    def __init__(self, coordinator: Any, make: Callable[[Sequence[int], int], tuple[Any, Any]]) -> None:
        """Takes what makes the iterators and the structure of an element, for workers and the steps done.

        The iterators are a `PerWorkerValues`. They never end, and are made again when a worker comes back.
        """
        self._coordinator = coordinator
        self._make = make
        self.renew(0)
        self.specs = (tf_private.spec_of(self._iterators),)

    @property
    def is_outdated(self) -> bool:
        members = tf_private.members_of(self._coordinator)
        return bool(members) and members != self._members

    def renew(self, done: int) -> None:
        self._members = tf_private.wait_for_members(self._coordinator)
        self._iterators, self.element_spec = self._make(self._members, done)

    def arguments(self, first_step: int, num_steps: int) -> tuple[Any, ...]:
        return (self._iterators,)

    def iterator(self, *arguments: Any) -> Any:
        return arguments[0]


class StepFeed:
    """A closure reads the batches of its own steps, so a worker that repeats it reads the same ones."""

    is_outdated = False  # any worker reads any step

    def __init__(self, recipe: Batches, read: pipeline.ReadOp) -> None:
        self._recipe = recipe
        self._read = read
        self.specs = (tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int64))
        self.element_spec = self.dataset(0, 1).element_spec

    def arguments(self, first_step: int, num_steps: int) -> tuple[Any, ...]:
        end_step = first_step + num_steps
        return tf.constant(first_step, tf.int64), tf.constant(end_step, tf.int64)

    def iterator(self, *arguments: Any) -> Any:
        return iter(self.dataset(*arguments))

    def renew(self, done: int) -> None:
        """There is nothing to divide."""

    def dataset(self, first_step: Any, end_step: Any) -> tf.data.Dataset:
        """Returns the global batches of some steps; ints, or scalar int64 tensors inside a closure."""
        return pipeline.elements(
            self._recipe,
            pipeline.Part(),
            start_step=first_step,
            end_step=end_step,
            read=self._read,
            finish=pipeline.without_counts,
        )


def read(run: TaskRun, data: Any, *, sources: SharedSources, skip: int) -> Feed:
    """Gives each worker its own batches of `data`, over and over.

    A function without arguments returns the whole data, of which worker i gets each batch whose
    number is i modulo the number of workers: workers that all ran one seeded pipeline would train on
    the same batches at the same time. When workers come or go, the data are divided anew. A function of
    a `tf.distribute.InputContext` shards for itself, before it does anything expensive; unlike TensorFlow's,
    its context knows all workers. Of batches of raydist.data each closure reads those of its own steps.

    Args:
      skip: Steps that all workers together have behind them.

    Raises:
      UnsupportedError: `data` are no such data.
    """
    strategy, num_slots = run.strategy, run.assignment.num_slots
    num_replicas = strategy.num_replicas_in_sync
    if isinstance(data, Batches):
        if num_replicas > 1:
            raise UnsupportedError(
                f"train_data are batches of raydist.data, and each worker has {num_replicas} GPUs; give each "
                "worker one GPU, and start more workers"
            )
        return StepFeed(data, sources.publish(data))
    function = train_data.function_of(data, "train_data")

    # Where a worker has several GPUs, TensorFlow cuts the batch for them. Not run on hardware.
    @functools.partial(tf.function, autograph=False)
    def own_part(number: tf.Tensor, num_workers: tf.Tensor, done: tf.Tensor) -> Any:
        part = _from(function(), skip, done, shard=(num_workers, number))
        return part if num_replicas == 1 else strategy.experimental_distribute_dataset(part)

    def of_context(number: int, num_workers: int, done: int) -> Any:
        context = contexts(strategy, num_workers)[number]
        part = _from(function(context), skip // num_workers, tf.constant(done // num_workers, tf.int64))
        return part if num_replicas == 1 else strategy.distribute_datasets_from_function(lambda _: part)

    def pipeline_of(number: int, num_workers: int, done: int) -> tuple[Any, tuple[tf.Tensor, ...]]:
        if train_data.takes_input_context(function):
            of_worker = functools.partial(of_context, number, num_workers, done)
            return tf.function(of_worker, autograph=False).get_concrete_function(), ()
        arguments = tuple(tf.constant(one, tf.int64) for one in (number, num_workers, done))
        return own_part.get_concrete_function(*[tf.TensorSpec([], tf.int64)] * 3), arguments

    def make(workers: Sequence[int], done: int) -> tuple[Any, Any]:
        # A worker that is not counted yet may come before the data are divided anew.
        numbers = [
            workers.index(slot) if slot in workers else slot % len(workers) for slot in range(num_slots)
        ]
        pipelines = [pipeline_of(number, len(workers), done) for number in numbers]
        for concrete in {id(one): one for one, _ in pipelines}.values():
            check_made_inside(concrete, "train_data")
        iterators = tf_private.per_worker_iterators(run.coordinator, strategy, pipelines)
        return iterators, tf_private.spec_of_replica(pipelines[0][0].structured_outputs.element_spec)

    return IteratorFeed(run.coordinator, make)


def _from(
    dataset: Any, skip: int, done: tf.Tensor, shard: tuple[tf.Tensor, tf.Tensor] | None = None
) -> tf.data.Dataset:
    """Returns endless passes of a dataset from the batch after `skip` and, less whole passes, `done`.

    Data workers give each element to one worker, whichever asks first: no others are left to skip.
    """
    size, passes = checked_dataset(dataset, "train_data").cardinality(), dataset.repeat()
    if tf_private.is_of_data_workers(dataset):
        return passes
    passes = passes.skip(skip + tf.where(size > 0, done % tf.maximum(size, 1), done))
    return passes if shard is None else passes.shard(*shard)


def contexts(strategy: tf.distribute.Strategy, num_workers: int) -> list[tf.distribute.InputContext]:
    """Returns what tells each worker which part of the data is its own."""
    num_replicas = strategy.num_replicas_in_sync
    return [tf.distribute.InputContext(num_workers, index, num_replicas) for index in range(num_workers)]


def num_batches(run: TaskRun, function: Callable[..., Any]) -> int:
    """Returns how many batches one pass over the data of all workers has; counts them where nobody knows.

    Raises:
      UnsupportedError: They never end.
    """
    num_workers, name = tf_private.num_members(run.coordinator), "train_data"
    makers: list[Callable[[], Any]] = [function]
    if train_data.takes_input_context(function):
        makers = [functools.partial(function, one) for one in contexts(run.strategy, num_workers)]
    counts = [int(checked_dataset(make(), name).cardinality()) for make in makers]
    if tf.data.INFINITE_CARDINALITY in counts:
        raise UnsupportedError(
            "ctx.fit needs steps_per_epoch, as train_data never ends; give it, or train_data without repeat()"
        )
    if tf.data.UNKNOWN_CARDINALITY not in counts:
        return sum(counts)

    def counter(make: Callable[[], Any]) -> Any:
        return tf.function(lambda: make().reduce(np.int64(0), lambda count, _: count + 1), autograph=False)

    functions = [counter(make) for make in makers]
    with tf_private.traced_for_workers(run.strategy):
        for one in functions:
            check_made_inside(one.get_concrete_function(), name)
    results = [run.coordinator.schedule(one) for one in functions]
    run.coordinator.join()
    total = sum(int(result.fetch()) for result in results)
    reporter.note(
        f"raydist counted {total} batches in one pass over train_data. "
        f"Pass steps_per_epoch={total} to skip it"
    )
    return total


def checked_dataset(dataset: Any, name: str) -> tf.data.Dataset:
    """Returns `dataset`; raises UnsupportedError unless it is a `tf.data.Dataset`."""
    if isinstance(dataset, tf.data.Dataset):
        return dataset
    raise UnsupportedError(
        f"the {name} function returned {type(dataset).__name__}; "
        "return a tf.data.Dataset batched with the global batch size"
    )


def check_made_inside(concrete: Any, name: str) -> None:
    """Raises UnsupportedError where a traced function only hands on a dataset that the chief has."""
    if any(tensor.dtype == tf.variant for tensor in concrete.captured_inputs):
        raise UnsupportedError(
            f"the {name} function uses a dataset that was made outside of it, which no worker can reach; "
            "give that dataset itself, or make it inside the function"
        )
