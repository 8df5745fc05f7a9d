"""What closures return: scalars of the user's steps, and the metrics that a closure keeps to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.training.checks import metric_check
from raydist.training.replicas import step_logs
from raydist.training.reporting.logs import numbers


class ReturnedScalars:
    """Runs a step on each replica and packs the scalars that it returns into one tensor.

    Attributes:
      names: Their names, sorted; known once the step is probed.
      shown: Which of them are results of metrics; known once the step is probed.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, step: Callable[[Any], Any], *, model: Any = None
    ) -> None:
        """Takes `step(element) -> dict of scalars`, converted to a graph's terms already.

        Args:
          model: Whose step it is; None for that of a loop.
        """
        self._strategy = strategy
        self._step = step
        self.names: tuple[str, ...] = ()
        self.shown = step_logs.Results(model)
        # Looked at in the first trace only: in others a metric's variables may have stand-ins.
        self._is_seen = model is None

    def probe(self, element_spec: Any) -> tf.Graph:
        """Traces one step for its names, and for the variables that an optimizer makes in it.

        Returns the trace.
        """
        with tf_private.traced_for_workers(self._strategy):
            return tf.function(self.run, autograph=False).get_concrete_function(element_spec).graph

    def run(self, element: Any) -> tf.Tensor:
        """Runs the step on `element`; returns float32 `[len(names)]`, the means over replicas."""
        packed = self._strategy.run(self._packed_step, args=(element,))
        per_replica = self._strategy.experimental_local_results(packed)
        return tf.add_n(list(per_replica)) / len(per_replica)

    def _packed_step(self, batch: Any) -> tf.Tensor:
        scalars = step_logs.as_tensors(self._step(batch))
        if not self._is_seen:
            self.shown.look_at(scalars)
            self._is_seen = True
        self.names = tuple(sorted(scalars)) if isinstance(scalars, Mapping) else ()
        if not self.names:
            return tf.zeros([0])
        return tf.stack([tf.cast(tf.reduce_mean(scalars[name]), tf.float32) for name in self.names])


class LocalMetrics:
    """The metrics of a compiled and built model of either Keras, as sums of what closures return."""

    def __init__(self, model: Any) -> None:
        self._model = model
        metric_check.note_sums(model)
        # A variable that is not found stays on its ps, and is updated there.
        slots = (slot for metric in model.metrics for slot in metric_check.slots_of(metric))
        self._slots = list({id(slot.variable): slot for slot in slots}.values())

    def zeros(self) -> tuple[tf.Tensor, ...]:
        """Returns what a closure begins with: a tensor for each variable of the metrics."""
        return tuple(slot.zeros() for slot in self._slots)

    def tally(self) -> Tally:
        return Tally([np.zeros(slot.variable.shape, _wide(slot.variable.dtype)) for slot in self._slots])

    def updated(
        self, state: Sequence[tf.Tensor], update: Callable[[], Any]
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        """Runs `update` with `state` as the metrics' variables; returns the new state and what it returned.

        Runs inside a `tf.function`; `update` may call `strategy.run`, whose replicas' parts are summed.
        """
        with metric_check.swapped(self._slots, state) as cells:
            returned = update()
            return tuple(cell.total() for cell in cells), returned

    def results(self, tally: Tally) -> dict[str, Any]:
        """Returns the metrics' values by name, without asking a ps."""
        with metric_check.swapped(self._slots, [tf.constant(value) for value in self._narrow(tally)]):
            # A result may be the variable itself, which is read here.
            return numbers(self._model.get_metrics_result())

    def write(self, tally: Tally) -> None:
        """Assigns the sums to the metrics' variables, for those who read them there.

        It also rounds the sums to the variables' types, so that a restored run continues with the same ones.
        """
        narrow = self._narrow(tally)
        tally.values = [value.astype(one.dtype) for value, one in zip(narrow, tally.values, strict=True)]
        for slot, value in zip(self._slots, narrow, strict=True):
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

    def __init__(self, values: Sequence[np.ndarray]) -> None:
        self.values = values

    def add(self, state: Sequence[np.ndarray]) -> None:
        # Not in place: a value that is a scalar of NumPy's cannot be changed.
        pairs = zip(self.values, state, strict=True)
        self.values = [value + added.astype(value.dtype) for value, added in pairs]


def _wide(dtype: tf.DType) -> Any:
    return np.float64 if dtype.is_floating else dtype.as_numpy_dtype
