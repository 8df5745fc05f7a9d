"""Where the closures of ParameterServer take their batches from."""

from __future__ import annotations

from typing import Any, Protocol

import tensorflow as tf

from raydist.data import pipeline
from raydist.data.batches import Batches
from raydist.training import tf_private


class Feed(Protocol):
    """What a closure is given, and how it makes an iterator of that.

    Attributes:
      element_spec: The structure of one replica's batch.
      specs: Types of a closure's arguments for the data.
    """

    element_spec: Any
    specs: tuple[Any, ...]

    def arguments(self, first_step: int, num_steps: int) -> tuple[Any, ...]:
        """Returns the arguments of the closure that runs some steps of the `fit`."""

    def iterator(self, *arguments: Any) -> Any:
        """Returns the iterator, inside the closure."""


class IteratorFeed:
    """Each worker goes through an iterator of its own, whatever steps it is given."""

    def __init__(self, iterators: Any, element_spec: Any) -> None:
        """Takes a `PerWorkerValues` of iterators that never end, made anew when a worker comes back."""
        self._iterators = iterators
        self.element_spec = element_spec
        self.specs = (tf_private.spec_of(iterators),)

    def arguments(self, first_step: int, num_steps: int) -> tuple[Any, ...]:
        return (self._iterators,)

    def iterator(self, *arguments: Any) -> Any:
        return arguments[0]


class StepFeed:
    """A closure reads the batches of its own steps, so a worker that repeats it reads the same ones."""

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
