"""Several steps of a model in one call: the data of the call, and the function that runs it.

keras_patches/ makes a `StepCall` of Keras's iterator for each call; model_steps.py makes the function by
`call_of_steps`, from one step. packing.py decides how many steps a call has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from raydist.training.checks.loss_rules import FirstLook
from raydist.training.replicas import batch_slices
from raydist.training.replicas.accumulation import Group
from raydist.training.reporting import reporter
from raydist.training.stepping import step_timing


class StepCall:
    """The data of one call of a step function: an iterator that ends after `num_steps` elements.

    Attributes:
      num_steps: Steps of the call; at least 1, also where no element is left.
      may_end: Whether the data may end before; they are then taken one by one.
      batches_per_step: Where it is more than 1, an element is a `Group` of that many; the last one before the
        data's end may have fewer.
      elements: Those of the call where they were taken ahead, to know how many are left; None otherwise.
    """

    def __init__(
        self,
        iterator: Any,
        num_steps: int,
        *,
        is_shared: bool,
        may_end: bool = False,
        batches_per_step: int = 1,
    ) -> None:
        """Begins the first call.

        Args:
          is_shared: Whether several replicas share each batch: elements are then the parts that they get.
        """
        self.iterator, self._is_shared = iterator, is_shared
        self.begin(num_steps, may_end=may_end, batches_per_step=batches_per_step)

    def begin(self, num_steps: int, *, may_end: bool, batches_per_step: int = 1) -> None:
        """Makes it the data of the next call, of at most `num_steps` steps."""
        self.num_steps, self.may_end, self._num_taken = num_steps, may_end, 0
        self.batches_per_step = batches_per_step
        self.elements: list[Any] | None = None
        if may_end and num_steps * batches_per_step > 1:
            self.elements = self._take(num_steps * batches_per_step)
            self.num_steps = max(1, len(self.elements))

    def _take(self, num_batches: int) -> list[Any]:
        batches: list[Any] = []
        with contextlib.suppress(StopIteration, tf.errors.OutOfRangeError):
            while len(batches) < num_batches:
                batches.append(self._next_batch())
        size = self.batches_per_step
        if size == 1:
            return batches
        return [Group(tuple(batches[first : first + size])) for first in range(0, len(batches), size)]

    def __iter__(self) -> StepCall:
        return self

    def __next__(self) -> Any:
        available = self.num_steps if self.elements is None else len(self.elements)
        if self._num_taken >= available:
            raise StopIteration
        self._num_taken += 1
        if self.elements is not None:
            return self.elements[self._num_taken - 1]
        return _of_step(self._next_batch, self.batches_per_step)

    def type_of(self, element: Any) -> Any:
        """Returns the type of an element, by that of the data; the element itself if they have none."""
        spec = getattr(self.iterator, "element_spec", None)
        if spec is None:
            return element
        spec = batch_slices.as_part(spec) if self._is_shared else spec
        return Group(tuple(spec for _ in element.batches)) if isinstance(element, Group) else spec

    def _next_batch(self) -> Any:
        element = step_timing.next_element(self.iterator)
        return batch_slices.as_part(element) if self._is_shared else element


def _of_step(next_batch: Callable[[], Any], batches_per_step: int) -> Any:
    """Returns the next batch, or the group of batches of the next step."""
    if batches_per_step == 1:
        return next_batch()
    return Group(tuple(next_batch() for _ in range(batches_per_step)))


def call_of_steps(
    one_step: Callable[[Any], Any],
    *,
    run_eagerly: bool,
    jit_compile: bool,
    as_element: Callable[[Any], Any],
    first_look: FirstLook,
) -> Callable[[Any], Any]:
    """Returns a function of a `StepCall` that runs its steps in one `tf.function`, for the last outputs.

    Also takes a plain Python iterator of one batch, as `train_on_batch` gives.

    Args:
      one_step: Takes an element of a `StepCall`: a batch, or the `Group` of a step.
      jit_compile: Whether XLA compiles each step, which one replica alone must then run.
      as_element: Makes an element of the batch of `train_on_batch`.
      first_look: Is shown the first element of each kind before its step is traced, and then the graph.
    """
    compiled = tf.function(one_step, reduce_retracing=True, jit_compile=True) if jit_compile else None
    traced = None if run_eagerly else compiled or tf.function(one_step, reduce_retracing=True)
    on_element = traced or one_step
    loops: dict[int, _Loop] = {}
    unseen = [] if compiled else [first_look.at_graph]
    begun: set[bool] = set()  # kinds of elements, by whether they are groups

    def looked_at(
        element: Any, run: Callable[[Any], Any], *, is_group: bool = False, knows_rows: bool = True
    ) -> Any:
        if is_group in begun:
            return run(element)
        begun.add(is_group)
        with reporter.noting_on_success():
            if first_look.is_wanted(is_group):
                first_look.at_element(element, knows_rows=knows_rows)
            return run(element)

    def loop(size: int) -> _Loop:
        if size not in loops:
            loops[size] = _Loop(compiled or one_step, batches_per_step=size)
        return loops[size]

    def one_by_one(call: StepCall) -> Any:
        outputs, knows_rows = None, batch_slices.has_known_rows(call.iterator)
        is_group = call.batches_per_step > 1

        def run(element: Any) -> Any:
            if traced is None:
                return on_element(element)
            traced.get_concrete_function(call.type_of(element))  # the shape of this element says more
            try:
                return on_element(element)
            except tf.errors.InvalidArgumentError:
                # It names the layer where shapes do not fit. Gradients may fail before layers do.
                tf.function(one_step).get_concrete_function(element)
                raise

        for _ in range(call.num_steps):
            try:
                element = next(call)
                outputs = looked_at(element, run, is_group=is_group, knows_rows=knows_rows)
                if unseen and traced is not None:
                    unseen.pop()(traced.get_concrete_function(call.type_of(element)).graph)
            except (StopIteration, tf.errors.OutOfRangeError):
                if outputs is None:
                    raise
                break
        return outputs

    def function(call: Any) -> Any:
        if not isinstance(call, StepCall):
            return looked_at(next(call), lambda batch: on_element(as_element(batch)))
        size = call.batches_per_step
        is_new = (size > 1) not in begun
        if is_new and size > 1:
            first_look.at_groups(call.iterator.element_spec)
        looks = is_new and first_look.is_wanted(size > 1)
        is_alike = not (call.may_end or run_eagerly or size > 1)  # calls of one batch a step, in a graph
        if looks and is_alike and first_look.take_over(lambda: loop(size).graph(call.iterator)):
            looks = False
        elif looks:
            loops.pop(size, None)
        if call.may_end or run_eagerly or (looks and (size > 1 or not _is_plain(call.iterator))):
            return one_by_one(call)
        num_steps, outputs = call.num_steps, None
        if looks:  # at the first element, which the same function then trains on as all others
            spec = call.iterator.element_spec
            outputs = looked_at(
                next(call),
                lambda first: loop(size)(_iterator_of_one(first, spec), 1),
                knows_rows=batch_slices.has_known_rows(call.iterator),
            )
            num_steps -= 1
        begun.add(size > 1)
        if num_steps:
            outputs = loop(size)(call.iterator, num_steps)
            if is_alike:
                first_look.hand_on(lambda: loop(size).graph(call.iterator))
        if unseen:
            unseen.pop()(loop(size).graph(call.iterator))
        return outputs

    return function


def _is_plain(iterator: Any) -> bool:
    """Whether it is one that `_iterator_of_one` makes: of dense tensors that no strategy distributes."""
    specs = tf.nest.flatten(getattr(iterator, "element_spec", None))
    return isinstance(iterator, tf.data.Iterator) and all(
        isinstance(one, tf.TensorSpec) and one.name is None for one in specs
    )


def _iterator_of_one(element: Any, spec: Any) -> Any:
    """Returns an iterator over an element that was taken already, of the type of the one that gave it.

    A `tf.function` is not traced anew for it.
    """
    step_timing.give_back(element)

    @tf.autograph.experimental.do_not_convert
    def of_type(*parts: tf.Tensor) -> Any:
        given = [
            tf.raw_ops.PlaceholderWithDefault(input=one, shape=each.shape)
            for one, each in zip(parts, tf.nest.flatten(spec), strict=True)
        ]
        return tf.nest.pack_sequence_as(spec, given)

    return iter(tf.data.Dataset.from_tensors(tuple(tf.nest.flatten(element))).map(of_type))


class _Loop:
    """Runs a number of steps in one `tf.function` that traces the step once, and returns the last outputs.

    The loop holds `strategy.run` directly: in a nested function the collectives lose their instance
    key (tensorflow-notes.md#several-steps-in-one-call). Outputs that are scalars, as logs are, leave
    the loop as one vector, whose length is known only once the step is traced. Others need a second
    trace, of a step before the loop.
    """

    def __init__(self, one_step: Callable[[Any], Any], *, batches_per_step: int) -> None:
        self._one_step = one_step
        self._batches_per_step = batches_per_step
        self._outputs: Any = None  # the structure of the step's outputs, known once it is traced
        self._run = tf.function(self._run_scalars, reduce_retracing=True, autograph=False)

    def __call__(self, iterator: Any, num_steps: int) -> Any:
        return self._traced(lambda run: run(iterator, tf.constant(num_steps)))

    def graph(self, iterator: Any) -> tf.Graph:
        """Returns the graph of the steps, which are traced now if they have not run."""
        return self._traced(lambda run: run.get_concrete_function(iterator, tf.constant(1)).graph)

    def _traced(self, use: Callable[[Any], Any]) -> Any:
        try:
            return use(self._run)
        except _NotScalarError:
            self._run = tf.function(self._run_any, reduce_retracing=True, autograph=False)
            return use(self._run)

    def _next(self, iterator: Any) -> Any:
        return _of_step(lambda: step_timing.next_element(iterator), self._batches_per_step)

    def _run_scalars(self, iterator: Any, count: tf.Tensor) -> Any:
        def body(index: tf.Tensor, last: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            self._outputs = self._one_step(self._next(iterator))
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
        outputs = self._one_step(self._next(iterator))
        _, outputs = tf.while_loop(
            lambda index, outputs: index < count,
            lambda index, outputs: (index + 1, self._one_step(self._next(iterator))),
            [tf.constant(1), outputs],
            parallel_iterations=1,
        )
        return outputs


class _NotScalarError(Exception):
    """An output of a step is not a scalar."""
