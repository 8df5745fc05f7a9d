"""Whether several batches of a model can make one update; looked at before the first one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.replicas.gradient_probe import Probe, Update
from raydist.training.replicas.gradients import is_processed
from raydist.training.replicas.replica_share import SHARE_TYPE, RecordedAmounts, use_share


class UpdateCheck:
    """A trace of a training step outside of the strategy, none of whose effects are executed.

    Attributes:
      updates: What the step gave to its optimizers.
      num_amounts: How many amounts its losses divide by that are known only from the data, such as the valid
        entries of a mask; see `replica_share.in_proportion`.
    """

    def __init__(self, step: Callable[[Any], Any], *, strategy: tf.distribute.Strategy, spec: Any) -> None:
        """Traces `step(batch)` for batches of `spec`, the structure of one replica's batch.

        Raises:
          Exception: Whatever the step raises.
        """
        self.updates: list[Update] = []
        self.num_amounts = 0
        self._step, self._spec, self._probe = step, spec, Probe(strategy)
        signature = [
            tf.TensorSpec(one.shape, one.dtype) for one in tf.nest.flatten(spec, expand_composites=True)
        ]
        self._run, graph = tf_private.without_effects(self._trace, signature)
        self.assigned = tf_private.assigned_variables(graph)
        self.is_processed = any(is_processed(one) for update in self.updates for one in update.gradients)

    def amounts(self, batch: Any) -> list[tf.Tensor]:
        """Returns the amounts of a batch in the order in which its losses ask for them."""
        if self.num_amounts == 0:
            return []
        return list(self._run(*tf.nest.flatten(batch, expand_composites=True)))

    def _trace(self, *flat: tf.Tensor) -> Sequence[tf.Tensor]:
        batch = tf.nest.pack_sequence_as(self._spec, list(flat), expand_composites=True)
        recorded = RecordedAmounts()
        with (
            tf_private.as_one_of(1),
            use_share(tf.constant(1.0, SHARE_TYPE), is_model_step=True, amounts=recorded),
        ):
            self.updates = self._probe.collect(lambda: self._step(batch))
        self.num_amounts = len(recorded.found)
        return recorded.found or [tf.constant(0.0, SHARE_TYPE)]

    def problem(self, weights: Sequence[Any], known: Sequence[Any]) -> str | None:
        """Returns what keeps several batches from making one update; None where nothing does.

        Args:
          weights: Variables of layers that training changes, also frozen ones.
          known: Variables that change with each batch by themselves: of metrics, and of layers.
        """
        if len(self.updates) != 1:
            return f"updates weights {len(self.updates)} times in a step"
        if self.updates[0].is_reduced:
            return "adds up its gradients over replicas by itself"
        if self.is_processed:
            return "clips or rescales the gradients of each batch by itself"
        is_weight, is_known = _ids(weights), _ids(known)
        changed = [one for one in self.assigned if id(one) in is_weight or id(one) not in is_known]
        if changed:
            return f"assigns to {', '.join(str(one.name) for one in changed[:3])} after each batch"
        return None


def _ids(variables: Sequence[Any]) -> set[int]:
    plain = (one if isinstance(one, tf.Variable) else one.value for one in variables)
    return {id(tf_private.distributed(one)) for one in plain if isinstance(one, tf.Variable)}
