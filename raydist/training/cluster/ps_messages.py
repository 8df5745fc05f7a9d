"""Fewer messages between a worker and the ps under ParameterServer.

Each tensor that crosses from one process to another is a message of its own, which costs as much CPU time
as a small layer. While the steps of a closure are traced, the small variables of a ps are read as one tensor,
and their gradients go back as one. What an update reads of another ps, such as the learning rate, crosses
once.

A worker reads what it would read without this: reads come after its own updates and assignments. It sees the
updates of other workers once per step; without this it may see them at any time. What an update reads, such
as the learning rate, is read once per turn of the loop, unless the steps write it. So is the number of the
step, to which a worker adds what its own steps add.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist import tf_private

# Copying more than this costs as much as a message.
_LARGEST_BYTES = 64 * 1024


@dataclass(frozen=True)
class _Held:
    """A variable's value in the graph, and how many operations had written the variable before."""

    value: tf.Tensor
    num_writers: int


@dataclass(frozen=True)
class _HeldScalar:
    """A scalar variable's value in the graph, and the names of the operations that had written it before."""

    value: tf.Tensor
    writers: frozenset[str]


class StepReads:
    """What the steps in one graph, the body of a closure's loop, read of the ps.

    Args:
      variables: Variables that the steps are likely to read, of TensorFlow or Keras.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._variables = [part for one in variables for part in tf_private.parts_of(one)]
        self._values: dict[int, _Held] = {}
        self._scalars: dict[int, _HeldScalar] = {}
        self._has_joined = False

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """The next step is traced inside, in the graph in which this was made."""
        self._values.clear()
        self._has_joined = False
        tf_private.replace_reads(_read)
        _Active.reads = self
        try:
            yield
        finally:
            _Active.reads = None

    def read(self, variable: Any, read: tf_private.Read) -> tf.Tensor:
        """Returns a variable's value, which `read` would read by itself."""
        if tf.compat.v1.get_default_graph() is not self._graph:
            return read()  # inside a condition or loop of the step, which may write it each time
        if tf_private.is_in_update():
            return self._scalar(variable, read) if variable.shape.rank == 0 else read()
        # What no tape records may be on its way to an assignment, and should be fresh.
        if not variable.trainable or not tf_private.is_recording():
            return read()
        if tf_private.has_tangent(variable, self._graph):
            return read()  # which a ForwardAccumulator follows
        if not self._has_joined:
            self._has_joined = True
            self._join()
        held = self._values.get(id(variable.handle))
        num_writers = self._num_writers(variable)
        if held is not None and held.num_writers == num_writers:
            return tf_private.recorded_read(variable, held.value)
        value = read()
        self._values[id(variable.handle)] = _Held(value, num_writers)
        return value

    def _num_writers(self, variable: Any) -> int:
        return len(tf_private.writers_of(variable, self._graph))

    def _scalar(self, variable: Any, read: tf_private.Read) -> tf.Tensor:
        writers = {op.name: op for op in tf_private.writers_of(variable, self._graph)}
        held = self._scalars.get(id(variable.handle))
        if held is not None:
            added = tf_private.added_number(writers[name] for name in writers.keys() - held.writers)
            if added == 0:
                return held.value
            if added is not None:
                with tf.device(tf_private.updated_device()):  # or each sum would be a message
                    return held.value + tf.constant(added, held.value.dtype)
        held = self._scalars[id(variable.handle)] = _HeldScalar(read(), frozenset(writers))
        return held.value

    def _join(self) -> None:
        """Reads the small variables, those of each ps as one tensor."""
        groups = defaultdict(list)
        for variable in self._variables:
            if variable.trainable and _is_small(variable):
                groups[variable.device, variable.dtype].append(variable)
        for (device, _), group in groups.items():
            if len(group) == 1:
                continue
            with tf_private.not_recording():
                with tf.device(device):
                    joined = _joined([tf_private.read_unseen(one) for one in group])
                values = _parts(joined, [one.shape for one in group])
            for variable, value in zip(group, values, strict=True):
                self._values[id(variable.handle)] = _Held(value, self._num_writers(variable))


class _Active:
    """The steps that are traced now; a chief traces one closure at a time."""

    reads: StepReads | None = None


def _read(variable: Any, read: tf_private.Read) -> tf.Tensor:
    return read() if _Active.reads is None else _Active.reads.read(variable, read)


def joined_gradients(grads_and_vars: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Returns (gradient, variable) pairs whose small dense gradients go to their ps as one tensor.

    An optimizer is about to update by them. Outside of a closure's steps nothing changes.
    """
    pairs = list(grads_and_vars)
    if _Active.reads is None:
        return pairs
    groups = defaultdict(list)
    for place, (gradient, variable) in enumerate(pairs):
        if isinstance(gradient, tf.Tensor) and _is_small(gradient):
            [part] = tf_private.parts_of(variable)  # an update is of one shard
            groups[part.device, gradient.dtype].append(place)
    for (device, _), places in groups.items():
        if len(places) == 1:
            continue
        gradients = [pairs[place][0] for place in places]
        joined = _joined(gradients)
        with tf.device(device):
            parts = _parts(joined, [one.shape for one in gradients])
        for place, part in zip(places, parts, strict=True):
            pairs[place] = part, pairs[place][1]
    return pairs


def _is_small(tensor: Any) -> bool:
    return (
        bool(tensor.shape.is_fully_defined())
        and tensor.shape.num_elements() * tensor.dtype.size <= _LARGEST_BYTES
    )


def _joined(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(one, [-1]) for one in tensors], axis=0)


def _parts(joined: tf.Tensor, shapes: Sequence[tf.TensorShape]) -> list[tf.Tensor]:
    parts = tf.split(joined, [shape.num_elements() for shape in shapes])
    return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]
