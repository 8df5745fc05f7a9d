"""Metrics that a closure keeps to itself, and returns.

Under ParameterServer a metric's variables live on a ps. Updating them there costs several messages a
step, Keras 3 loses updates, because it reads, adds and assigns (TF_NOTES 2), and a closure that ran
twice counts twice. Here a closure begins with zeros in place of the variables and returns what it has
added; the chief sums what arrives, once for each closure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.reporting.logs import numbers


@dataclass(frozen=True)
class _Slot:
    """Where a metric holds a variable: `holder.name` is `variable`."""

    holder: Any
    name: str
    variable: tf.Variable


class LocalMetrics:
    """The metrics of a compiled and built model of either Keras, as sums of what closures return."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._slots = _slots_of(model)

    def zeros(self) -> tuple[tf.Tensor, ...]:
        """Returns what a closure begins with: a tensor for each variable of the metrics."""
        return tuple(tf.zeros(slot.variable.shape, slot.variable.dtype) for slot in self._slots)

    def tally(self) -> Tally:
        """Returns an empty sum."""
        return Tally([np.zeros(slot.variable.shape, _wide(slot.variable.dtype)) for slot in self._slots])

    def updated(
        self, state: Sequence[tf.Tensor], update: Callable[[], Any]
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        """Runs `update` with `state` as the metrics' variables; returns the new state and what it returned.

        Runs inside a `tf.function`; `update` may call `strategy.run`, whose replicas' parts are summed.
        """
        with self._swapped(state) as cells:
            returned = update()
            return tuple(cell.total() for cell in cells), returned

    def results(self, tally: Tally) -> dict[str, Any]:
        """Returns the metrics' values by name, without asking a ps."""
        with self._swapped([tf.constant(value) for value in self._narrow(tally)]):
            logs = self._model.get_metrics_result()
        return numbers(logs)

    def write(self, tally: Tally) -> None:
        """Assigns the sums to the metrics' variables, for those who read them there."""
        for slot, value in zip(self._slots, self._narrow(tally), strict=True):
            slot.variable.assign(value)

    def read(self) -> Tally:
        """Returns the sums that the metrics' variables hold."""
        return Tally([slot.variable.numpy().astype(_wide(slot.variable.dtype)) for slot in self._slots])

    def _narrow(self, tally: Tally) -> list[np.ndarray]:
        return [
            value.astype(slot.variable.dtype.as_numpy_dtype)
            for slot, value in zip(self._slots, tally.values, strict=True)
        ]

    @contextmanager
    def _swapped(self, state: Sequence[tf.Tensor]) -> Iterator[list[_Cell]]:
        cells = [_Cell(slot.variable, value) for slot, value in zip(self._slots, state, strict=True)]
        try:
            # Past __setattr__, by which both Kerases track what is a variable.
            for slot, cell in zip(self._slots, cells, strict=True):
                vars(slot.holder)[slot.name] = cell
            yield cells
        finally:
            for slot in self._slots:
                vars(slot.holder)[slot.name] = slot.variable


class Tally:
    """Sums of what closures returned, in double precision."""

    def __init__(self, values: list[np.ndarray]) -> None:
        self.values = values

    def add(self, state: Sequence[np.ndarray]) -> None:
        for value, added in zip(self.values, state, strict=True):
            value += added.astype(value.dtype)


class _Cell:
    """Stands for a metric's variable while a closure is traced: one tensor for each replica."""

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


def _slots_of(model: Any) -> list[_Slot]:
    """Returns where the metrics hold their variables, each once.

    A variable that is not found stays on its ps, and is updated there.
    """
    slots: dict[int, _Slot] = {}
    for holder, name, variable in adapter_of(model).metric_slots(model):
        slots[id(variable)] = _Slot(holder, name, variable)
    return list(slots.values())


def _wide(dtype: tf.DType) -> Any:
    return np.float64 if dtype.is_floating else dtype.as_numpy_dtype
