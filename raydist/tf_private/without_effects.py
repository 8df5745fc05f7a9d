"""Runs what computes the outputs of a function, and nothing that it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from raydist import op_types
from raydist.tf_private.graphs import (
    bodies_of,
    draws_by_own_seed,
    has_state,
    may_call,
    operations_in,
    ops_behind,
)


class WithoutEffects:
    """Computes the outputs of a function, in a list, and does nothing else.

    A `tf.function` runs all that changes something, such as an assignment or a summary, in its order. Here it
    is left out.

    Attributes:
      graph: All that the function was traced to.
      inputs: The tensors in it that its arguments consist of.
      needed: A graph of what the outputs need.
      effects: The types of operations that the outputs need, and that do more than compute them, such as
        calling Python. With any of them it cannot be called.
    """

    def __init__(self, function: Callable[..., Sequence[tf.Tensor]], *specs: Any) -> None:
        """Traces `function`, whose arguments have the structures of `specs`."""

        def on_flat(*flat: tf.Tensor) -> Sequence[tf.Tensor]:
            # By its name tf_keras takes it for one of TensorFlow 1 (base_layer_utils.py,
            # `is_in_tf_function`).
            tf.compat.v1.get_default_graph().name = "raydist_without_effects"
            return function(*tf.nest.pack_sequence_as(specs, list(flat), expand_composites=True))

        flat_specs = tf.nest.flatten(specs, expand_composites=True)
        traced = tf.compat.v1.wrap_function(
            on_flat, [tf.TensorSpec(one.shape, one.dtype) for one in flat_specs]
        )
        self.graph: tf.Graph = traced.graph
        # Behind them come variables and other tensors from outside.
        self.inputs: list[tf.Tensor] = traced.inputs[: len(flat_specs)]
        self._traced = traced
        self._run = traced.prune(self.inputs, traced.outputs)
        self.needed: tf.Graph = self._run.graph
        self.effects = _effects_in(self.needed)

    def used_by(self, tensors: Sequence[tf.Tensor]) -> Iterator[tf.Operation]:
        """Yields each operation that the outputs need, or what has effects, or `tensors` of the graph."""
        changing = [op for op in self.graph.get_operations() if _changes_something(op)]
        return ops_behind(*self._traced.outputs, *(one for op in changing for one in op.inputs), *tensors)

    def __call__(self, *args: Any) -> list[tf.Tensor]:
        """Returns the outputs.

        Raises:
          ValueError: There are `effects`.
        """
        _check_effects(self.effects)
        return list(self._run(*tf.nest.flatten(args, expand_composites=True)))

    def given(
        self, tensors: Sequence[tf.Tensor], *, outputs: Sequence[tf.Tensor] | None = None
    ) -> Callable[..., list[tf.Tensor]]:
        """Returns a function of a list of values, which take the place of `tensors`, and of the arguments.

        It computes the outputs from these values, and not what is ahead of the tensors in the graph.

        Args:
          outputs: Other tensors of `graph` that it computes in place of the outputs.

        Raises:
          ValueError: What is computed has effects.
        """
        fetched = self._traced.outputs if outputs is None else list(outputs)
        run = self._traced.prune([*self.inputs, *tensors], fetched)
        _check_effects(_effects_in(run.graph))

        def call(values: Sequence[Any], *args: Any) -> list[tf.Tensor]:
            return list(run(*tf.nest.flatten(args, expand_composites=True), *values))

        return call

    def other_scalars(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the scalar variables that are 0 now, as `given` takes them, and other values for them.

        Real ones are then 1, and whole numbers 1000, as a count of steps is when training has begun.
        """
        reads = [
            op.outputs[0]
            for op in self.needed.get_operations()
            if op.type == "ReadVariableOp" and op.outputs[0].shape.rank == 0
        ]
        reads = [self.graph.get_tensor_by_name(one.name) for one in reads if one.dtype in _COUNTED]
        values = self._traced.prune([], reads)() if reads else []
        zeros = [one for one, value in zip(reads, values, strict=True) if value == 0]
        return zeros, [tf.constant(1.0 if one.dtype.is_floating else 1000, one.dtype) for one in zeros]


_COUNTED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def _check_effects(effects: Sequence[str]) -> None:
    if effects:
        raise ValueError(f"what is computed needs {', '.join(effects)}, which have effects")


def _effects_in(graph: tf.Graph) -> list[str]:
    return sorted({op.type for op in operations_in(graph) if _has_effect(op.type)})


def _changes_something(op: tf.Operation) -> bool:
    if _has_effect(op.type):
        return True
    bodies = bodies_of(op) if may_call(op.type) else []
    return any(_has_effect(one.type) for body in bodies for one in operations_in(body))


def _has_effect(op_type: str) -> bool:
    if op_type in op_types.PYTHON:
        return True
    is_draw = op_type.startswith("Cudnn") or draws_by_own_seed(op_type)
    return has_state(op_type) and not is_draw and op_type not in op_types.WITHOUT_EFFECTS
