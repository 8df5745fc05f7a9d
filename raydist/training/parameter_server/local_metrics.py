"""Metrics that a closure keeps to itself, and returns.

Under ParameterServer a metric's variables live on a ps. Updating them there costs several messages a
step, Keras 3 loses updates, because it reads, adds and assigns, and a closure that ran twice counts
twice. Here a closure begins with zeros in place of the variables and returns what it has
added; the chief sums what arrives, once for each closure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.replicas import metric_cells, metric_check
from raydist.training.reporting.logs import numbers


class LocalMetrics:
    """The metrics of a compiled and built model of either Keras, as sums of what closures return."""

    def __init__(self, model: Any) -> None:
        self._model = model
        metric_check.note_sums(model)
        # A variable that is not found stays on its ps, and is updated there.
        slots = (slot for metric in model.metrics for slot in metric_cells.slots_of(metric))
        self._slots = list({id(slot.variable): slot for slot in slots}.values())

    def zeros(self) -> tuple[tf.Tensor, ...]:
        """Returns what a closure begins with: a tensor for each variable of the metrics."""
        return tuple(slot.zeros() for slot in self._slots)

    def tally(self) -> Tally:
        """Returns an empty sum."""
        return Tally([np.zeros(slot.variable.shape, _wide(slot.variable.dtype)) for slot in self._slots])

    def updated(
        self, state: Sequence[tf.Tensor], update: Callable[[], Any]
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        """Runs `update` with `state` as the metrics' variables; returns the new state and what it returned.

        Runs inside a `tf.function`; `update` may call `strategy.run`, whose replicas' parts are summed.
        """
        with metric_cells.swapped(self._slots, state) as cells:
            returned = update()
            return tuple(cell.total() for cell in cells), returned

    def results(self, tally: Tally) -> dict[str, Any]:
        """Returns the metrics' values by name, without asking a ps."""
        with metric_cells.swapped(self._slots, [tf.constant(value) for value in self._narrow(tally)]):
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


class Tally:
    """Sums of what closures returned, in double precision."""

    def __init__(self, values: list[np.ndarray]) -> None:
        self.values = values

    def add(self, state: Sequence[np.ndarray]) -> None:
        for value, added in zip(self.values, state, strict=True):
            value += added.astype(value.dtype)


def _wide(dtype: tf.DType) -> Any:
    return np.float64 if dtype.is_floating else dtype.as_numpy_dtype
