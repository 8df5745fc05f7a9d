"""Whether several batches can make one update of a model, and what of each batch that takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.replicas import batch_slices
from raydist.training.replicas.gradient_probe import Probe, Update
from raydist.training.replicas.replica_share import SHARE_TYPE, use_share
from raydist.training.user_code import side_effects
from raydist.training.user_code.code_names import described, is_keras


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
          Exception: What the step raises.
        """
        self.updates: list[Update] = []
        self.num_amounts = 0
        self._step, self._probe = step, Probe(strategy)
        self._run = tf_private.WithoutEffects(self._trace, spec)
        self.assigned = tf_private.assigned_variables(self._run.graph)
        self.is_clipped = any(update.is_clipped for update in self.updates)

    def amounts(self, batch: Any) -> list[tf.Tensor]:
        """Returns the amounts of a batch in the order in which its losses ask for them."""
        return self._run(batch) if self.num_amounts else []

    def _trace(self, batch: Any) -> Sequence[tf.Tensor]:
        amounts: list[tf.Tensor] = []

        def record(amount: tf.Tensor) -> tf.Tensor:
            amounts.append(tf.cast(amount, SHARE_TYPE))
            return amount

        share = tf.constant(1.0, SHARE_TYPE)
        with tf_private.as_one_of(1), use_share(share, is_model_step=True, total_of=record):
            self.updates = self._probe.collect(lambda: self._step(batch))
        self.num_amounts = len(amounts)
        return amounts or [tf.constant(0.0, SHARE_TYPE)]

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
        if self.is_clipped:
            return "clips or rescales the gradients of each batch by itself"
        is_weight, is_known = tf_private.ids_of(weights), tf_private.ids_of(known)
        changed = [one for one in self.assigned if id(one) in is_weight or id(one) not in is_known]
        if changed:
            return f"assigns to {', '.join(str(one.name) for one in changed[:3])} after each batch"
        return None


def check_update(model: Any, step: Callable[[Any], Any], element_spec: Any) -> UpdateCheck:
    """Returns the check of a step of which several batches can make one update, before the first is traced.

    Args:
      step: The model's `train_step` as its Keras traces it, for one replica's batch.
      element_spec: The type of an element of the distributed data.

    Raises:
      UnsupportedError: They cannot.
    """
    strategy = model.distribute_strategy
    own = tf_private.spec_of_replica(element_spec)
    where = described(type(model).train_step)
    try:
        spec = tf.nest.map_structure(batch_slices.relaxed_spec, batch_slices.own_rows_of(own))
        with side_effects.undone(model):
            check = UpdateCheck(step, strategy=strategy, spec=spec)
    except Exception as error:  # the user's code
        raise UnsupportedError(
            f"ctx.fit got accumulate, and {where} could not be traced for one batch by itself "
            f"({type(error).__name__}: {error}); leave accumulate out"
        ) from error
    layers = list(model._flatten_layers(include_self=False))
    problem = None
    if not is_keras(type(model).train_step):
        weights = [variable for one in layers for variable in _weights_of(one)]
        owners = (*layers, *model.metrics)
        known = [variable for one in owners for variable in (*one.variables, *_seeds_of(one))]
        problem = check.problem(weights, known)
    if problem is not None:
        raise UnsupportedError(
            f"ctx.fit got accumulate, but {where} {problem}, so its batches cannot make one update; leave "
            "accumulate out, or give the optimizer the gradients of the batch once, as they are"
        )
    return check


def _weights_of(layer: Any) -> list[Any]:
    """Returns what training changes of a layer, also while it is frozen."""
    is_keras_3 = hasattr(layer, "_trainable_variables")
    return list(getattr(layer, "_trainable_variables" if is_keras_3 else "_trainable_weights", ()))


def _seeds_of(layer: Any) -> list[Any]:
    return [one.state for one in getattr(layer, "_seed_generators", ())]
