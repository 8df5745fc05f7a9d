"""Tensors in place of a metric's variables, so that updating a metric is a function of its state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Slot:
    """Where a metric holds a variable: `holder.name` is `variable`."""

    holder: Any
    name: str
    variable: tf.Variable

    def zeros(self) -> tf.Tensor:
        return tf.zeros(self.variable.shape, self.variable.dtype)


def slots_of(metric: Any) -> list[Slot]:
    """Returns where a metric of either Keras, and those inside of it, hold their variables, each once.

    A variable that a metric of tf_keras keeps in a list is not found.
    """
    slots: dict[int, Slot] = {}
    variables = metric.variables
    for variable in variables:
        if not isinstance(variable, tf.Variable):  # Keras 3 wraps it
            slots[id(variable)] = Slot(variable, "_value", variable.value)
    if not slots and variables:
        for holder in metric._flatten_layers():  # a metric may hold others
            for name, value in vars(holder).items():
                if any(value is variable for variable in variables):
                    slots[id(value)] = Slot(holder, name, value)
    return list(slots.values())


@contextmanager
def swapped(slots: Sequence[Slot], state: Sequence[tf.Tensor]) -> Iterator[list[Cell]]:
    """Has the metrics find cells in place of their variables inside the block, which begin with `state`."""
    cells = [Cell(slot.variable, value) for slot, value in zip(slots, state, strict=True)]
    try:
        # Past __setattr__, by which both Kerases track what is a variable.
        for slot, cell in zip(slots, cells, strict=True):
            vars(slot.holder)[slot.name] = cell
        yield cells
    finally:
        for slot in slots:
            vars(slot.holder)[slot.name] = slot.variable


class Cell:
    """Stands for a metric's variable while something is traced: one tensor for each replica."""

    def __init__(self, variable: tf.Variable, value: tf.Tensor) -> None:
        self.name = variable.name
        self.dtype = variable.dtype
        self.shape = variable.shape
        # The others begin with nothing: the parts of the replicas are summed.
        self._values: dict[int, tf.Tensor] = {0: value}

    def total(self) -> tf.Tensor:
        return tf.add_n(list(self._values.values())) if len(self._values) > 1 else self._values[0]

    def read_value(self) -> tf.Tensor:
        return self._values.setdefault(_replica(), tf.zeros(self.shape, self.dtype))

    value = read_value

    def numpy(self) -> np.ndarray:
        return self.read_value().numpy()

    def assign(self, value: Any, **options: object) -> tf.Tensor:
        self._values[_replica()] = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        return self.read_value()

    def assign_add(self, delta: Any, **options: object) -> tf.Tensor:
        return self.assign(self.read_value() + tf.cast(delta, self.dtype))

    def assign_sub(self, delta: Any, **options: object) -> tf.Tensor:
        return self.assign(self.read_value() - tf.cast(delta, self.dtype))

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        value = self.read_value()
        return value if dtype is None or dtype == value.dtype else tf.cast(value, dtype)

    def __getitem__(self, key: Any) -> tf.Tensor:
        return self.read_value()[key]

    def __add__(self, other: Any) -> tf.Tensor:
        return self.read_value() + other

    def __sub__(self, other: Any) -> tf.Tensor:
        return self.read_value() - other

    def __mul__(self, other: Any) -> tf.Tensor:
        return self.read_value() * other

    def __truediv__(self, other: Any) -> tf.Tensor:
        return self.read_value() / other

    def __radd__(self, other: Any) -> tf.Tensor:
        return other + self.read_value()

    def __rsub__(self, other: Any) -> tf.Tensor:
        return other - self.read_value()

    def __rmul__(self, other: Any) -> tf.Tensor:
        return other * self.read_value()

    def __rtruediv__(self, other: Any) -> tf.Tensor:
        return other / self.read_value()


def _replica() -> int:
    context = tf.distribute.get_replica_context()
    return 0 if context is None else int(tf.get_static_value(context.replica_id_in_sync_group))
