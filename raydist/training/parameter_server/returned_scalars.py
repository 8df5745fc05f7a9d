"""The scalars that a training step returns, found by a trace and averaged over replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.replicas import own_logs


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
        self.shown = own_logs.Results(model)
        # Looked at in the first trace only: in others a metric's variables may have stand-ins.
        self._is_seen = model is None

    def probe(self, element_spec: Any) -> tf.Graph:
        """Traces one step for its names, and for the variables that an optimizer makes in it.

        Returns the trace.

        Args:
          element_spec: The structure of one replica's batch.
        """
        with tf_private.traced_for_workers(self._strategy):
            return tf.function(self.run, autograph=False).get_concrete_function(element_spec).graph

    def run(self, element: Any) -> tf.Tensor:
        """Runs the step on `element`; returns float32 `[len(names)]`, the means over replicas."""
        packed = self._strategy.run(self._packed_step, args=(element,))
        per_replica = self._strategy.experimental_local_results(packed)
        return tf.add_n(list(per_replica)) / len(per_replica)

    def _packed_step(self, batch: Any) -> tf.Tensor:
        scalars = self._step(batch)
        if not self._is_seen:
            self.shown.look_at(scalars)
            self._is_seen = True
        self.names = tuple(sorted(scalars)) if isinstance(scalars, Mapping) else ()
        if not self.names:
            return tf.zeros([0])
        return tf.stack([tf.cast(tf.reduce_mean(scalars[name]), tf.float32) for name in self.names])
