"""One update of a model from several batches, on one replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from raydist.training.replicas import accumulation, own_logs, slices
from raydist.training.replicas.loss_verdict import LossRule
from raydist.training.replicas.replica_share import KnownAmounts, use_share
from raydist.training.replicas.update_check import UpdateCheck


def run(
    step: Callable[[Any], Any],
    elements: Sequence[Any],
    *,
    model: Any,
    rule: LossRule,
    check: UpdateCheck,
    shown: own_logs.Results | None,
    metric_variables: Sequence[tf.Variable],
) -> Any:
    """Runs `step` on each of a replica's batches, and updates the weights once, by all of them.

    The step is traced once for each batch, and the batches are computed one after the other.

    Args:
      check: What is known of the step.
      shown: What of metrics a step of the user's shows; None for one of Keras's, which shows nothing else.
      metric_variables: Variables that a padding example must not change.

    Returns:
      The outputs of the last batch; of a step of the user's, the means of what are no metrics.
    """
    num_replicas = model.distribute_strategy.num_replicas_in_sync
    shares = accumulation.shares_of(elements, num_replicas)
    totals = _totals(elements, shares, check, num_replicas)
    accumulated, outputs = accumulation.Accumulated(), []

    def run_batch(element: Any, share: tf.Tensor) -> Any:
        batch = element.batch if isinstance(element, slices.Slice) else element
        with (
            use_share(share, rule, is_model_step=True, amounts=KnownAmounts(totals)),
            accumulation.collecting(accumulated),
        ):
            return step(batch)

    for given, share in zip(elements, shares, strict=True):
        element = accumulated.after(given)
        outputs.append(
            slices.keep_on_padding(metric_variables, element, lambda: run_batch(element, share))  # noqa: B023
        )
    accumulated.apply()
    if shown is None:
        return outputs[-1]
    return own_logs.of_update(outputs, shares, shown, num_replicas=num_replicas)


def _totals(
    elements: Sequence[Any], shares: Sequence[tf.Tensor], check: UpdateCheck, num_replicas: int
) -> list[tf.Tensor]:
    """Returns what all batches of the update, on all replicas, have of each amount: a collective if any."""
    if check.num_amounts == 0:
        return []
    own = []
    for element, share in zip(elements, shares, strict=True):
        batch = element.batch if isinstance(element, slices.Slice) else element
        amounts = tf.stack(check.amounts(batch))
        own.append(tf.where(share > 0, amounts, tf.zeros_like(amounts)))
    total = tf.add_n(own)
    context = tf.distribute.get_replica_context()
    if num_replicas > 1 and context is not None:
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
    return list(tf.unstack(total, num=check.num_amounts))
