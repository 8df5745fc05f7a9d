"""Several steps of a model in one call: the data of the call, and the function that runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from raydist.training.input import input_clock


class StepCall:
    """The data of one call of a step function: an iterator that ends after `num_steps` elements.

    Attributes:
      num_steps: Steps of the call; at least 1, also where no element is left.
      may_end: Whether the data may end before; they are then taken one by one.
      elements: Those of the call where they were taken ahead, which tells how many are left; None otherwise.
    """

    def __init__(self, iterator: Any, num_steps: int, *, may_end: bool = False) -> None:
        self.iterator = iterator
        self.begin(num_steps, may_end=may_end)

    def begin(self, num_steps: int, *, may_end: bool) -> None:
        """Makes it the data of the next call, of at most `num_steps` steps."""
        self.num_steps, self.may_end, self._num_taken = num_steps, may_end, 0
        self.elements: list[Any] | None = None
        if may_end and num_steps > 1:
            self.elements = self._take(num_steps)
            self.num_steps = max(1, len(self.elements))

    def _take(self, num_steps: int) -> list[Any]:
        elements: list[Any] = []
        with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
            while len(elements) < num_steps:
                elements.append(input_clock.next_element(self.iterator))
        return elements

    def __iter__(self) -> StepCall:
        return self

    def __next__(self) -> Any:
        available = self.num_steps if self.elements is None else len(self.elements)
        if self._num_taken >= available:
            raise StopIteration
        self._num_taken += 1
        if self.elements is not None:
            return self.elements[self._num_taken - 1]
        return input_clock.next_element(self.iterator)


def call_of_steps(
    one_step: Callable[[Any], Any],
    *,
    run_eagerly: bool,
    jit_compile: bool,
    on_batch: Callable[[Any], Any] | None = None,
    look_at_first: Callable[[Any], None] | None = None,
) -> Callable[[Any], Any]:
    """Returns a function of a `StepCall` that runs its steps in one `tf.function`, for the last outputs.

    Also takes a plain Python iterator of one batch, as `train_on_batch` gives.

    Args:
      jit_compile: Whether XLA compiles each step, which one replica alone must then run.
      on_batch: Takes the batch of `train_on_batch`; None where it needs no other step.
      look_at_first: Called with the first element, before a step is traced.
    """
    compiled = tf.function(one_step, reduce_retracing=True, jit_compile=True) if jit_compile else None
    on_element = one_step if run_eagerly else compiled or tf.function(one_step, reduce_retracing=True)
    in_graph = _Loop(compiled or one_step)
    has_looked = look_at_first is None

    def looked_at(element: Any) -> Any:
        nonlocal has_looked
        if not has_looked and look_at_first is not None:
            has_looked = True
            look_at_first(element)
        return element

    def one_by_one(call: StepCall) -> Any:
        outputs = None
        for _ in range(call.num_steps):
            try:
                outputs = on_element(looked_at(next(call)))
            except (StopIteration, tf.errors.OutOfRangeError):
                if outputs is None:
                    raise
                break
        return outputs

    def function(call: Any) -> Any:
        if not isinstance(call, StepCall):
            return (on_batch or on_element)(looked_at(next(call)))
        if call.may_end or run_eagerly or not has_looked:
            return one_by_one(call)
        return in_graph(call.iterator, call.num_steps)

    return function


class _Loop:
    """Runs a number of steps in one `tf.function` that traces the step once, and returns the last outputs.

    The loop holds `strategy.run` directly: in a nested function the collectives lose their instance
    key, a call-time capture (keras#19246). Outputs that are scalars, as logs are, leave the loop as
    one vector, whose length is known only once the step is traced. Others need a second trace, of a
    step before the loop.
    """

    def __init__(self, one_step: Callable[[Any], Any]) -> None:
        self._one_step = one_step
        self._outputs: Any = None  # the structure of the step's outputs, known once it is traced
        self._run = tf.function(self._run_scalars, reduce_retracing=True, autograph=False)

    def __call__(self, iterator: Any, num_steps: int) -> Any:
        count = tf.constant(num_steps)
        try:
            return self._run(iterator, count)
        except _NotScalarError:
            self._run = tf.function(self._run_any, reduce_retracing=True, autograph=False)
            return self._run(iterator, count)

    def _run_scalars(self, iterator: Any, count: tf.Tensor) -> Any:
        def body(index: tf.Tensor, last: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            self._outputs = self._one_step(input_clock.next_element(iterator))
            values = tf.nest.flatten(self._outputs)
            if any(not tf.is_tensor(value) or value.shape.rank != 0 for value in values):
                raise _NotScalarError
            vector = tf.stack([tf.cast(value, tf.float32) for value in values]) if values else tf.zeros([0])
            return index + 1, tf.ensure_shape(vector, [len(values)])

        _, last = tf.while_loop(
            lambda index, last: index < count,
            body,
            [tf.constant(0), tf.zeros([0])],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
            parallel_iterations=1,
        )
        structure = tf.nest.map_structure(lambda value: None, self._outputs)
        scalars = tf.unstack(last, num=len(tf.nest.flatten(structure)))
        return tf.nest.pack_sequence_as(structure, scalars)

    def _run_any(self, iterator: Any, count: tf.Tensor) -> Any:
        outputs = self._one_step(input_clock.next_element(iterator))
        _, outputs = tf.while_loop(
            lambda index, outputs: index < count,
            lambda index, outputs: (index + 1, self._one_step(input_clock.next_element(iterator))),
            [tf.constant(1), outputs],
            parallel_iterations=1,
        )
        return outputs


class _NotScalarError(Exception):
    """An output of a step is no scalar."""
