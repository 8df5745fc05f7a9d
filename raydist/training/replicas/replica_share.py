"""What a replica's losses and gradients weigh in those of the global batch, while its step is traced.

The gradient of the global batch is the sum of the replicas' gradients, if each replica's loss is weighted
by its share of the examples. Who applies that weight is the `LossRule`: Keras's losses do it themselves, a
user's `tf.reduce_mean` does not.

batch_slices.py enters `use_share` around each replica's step. The patched losses, metrics and optimizers of
keras_patches/ then ask here what to scale: Keras calls them, so nothing can be passed to them.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.training.cluster import default_strategy
from raydist.training.replicas import gradient_probe
from raydist.training.replicas.all_reduce import with_values
from raydist.training.replicas.model_states import LossRule
from raydist.training.user_code import linearity

# Of shares and amounts: a model may compute in float64, whose losses must not be weighted more coarsely.
SHARE_TYPE = tf.float64


# Called with one batch's divisor of a loss; returns its total over the batches of the update.
TotalOf = Callable[[tf.Tensor], tf.Tensor]


def in_turn(totals: Sequence[tf.Tensor]) -> TotalOf:
    """Returns what gives the totals in the order in which a batch's losses ask for them."""
    left = iter(totals)
    return lambda amount: tf.cast(next(left), amount.dtype)


class StepContext(threading.local):
    """What holds in the step that a replica is traced for. MirroredStrategy traces each in its own thread.

    Attributes:
      share: Of the replica; None where every replica has an equal one.
      is_of_model: Whether it is a Keras model's step, which scales what its layers give to `add_loss`.
      rule, is_evaluation, total_of, accumulated: See `use_share`.
      is_traced: Whether a step is traced at all.
      halves, loss_scale: While several gradients are added up, for `accumulation.overflowed`: which of them
        came from float16, and what they were divided by.
      losses: What tf_keras computes the losses by that `compile` was given, while it does; else None.
    """

    share: tf.Tensor | None = None
    rule = LossRule.SCALED
    total_of: TotalOf | None = None
    is_traced = is_of_model = is_evaluation = False
    accumulated: Any = None
    halves: list[bool] | None = None
    loss_scale: tf.Tensor | None = None
    losses: Any = None


current = StepContext()
# The metrics that are given sums over a replica's examples, with the rules by which the steps that do so run,
# and whether those evaluate: other steps may give the metrics something else.
_takers_of_sums: weakref.WeakKeyDictionary[Any, frozenset[tuple[LossRule, bool]]] = (
    weakref.WeakKeyDictionary()
)


class use_share:
    """Sets share and rule inside a `with` block. A class, so that AutoGraph need not convert a generator."""

    def __init__(
        self,
        share: tf.Tensor | None,
        rule: LossRule = LossRule.SCALED,
        *,
        is_model_step: bool = False,
        is_evaluation: bool = False,
        total_of: TotalOf | None = None,
        accumulated: Any = None,
    ) -> None:
        """Takes what holds inside.

        Args:
          is_model_step: Whether it is a Keras model's step, and not a bare loop's.
          is_evaluation: Whether it is the model's test step.
          total_of: Where the batch is one of several that make an update. `share` is then its part of those.
          accumulated: What optimizers then give their gradients to: an `accumulation.Accumulated`.
        """
        self._context = tf_private.changed(
            current,
            share=share,
            rule=rule,
            total_of=total_of,
            is_traced=True,
            is_of_model=is_model_step,
            is_evaluation=is_evaluation,
            accumulated=accumulated,
        )
        self._inlined = tf_private.inlined_functions()

    def __enter__(self) -> None:
        self._context.__enter__()
        # A function's trace would be for this share alone.
        self._inlined = tf_private.inlined_functions(only_in_traces=is_whole())
        self._inlined.__enter__()

    def __exit__(self, *exc_info: Any) -> None:
        self._inlined.__exit__()
        self._context.__exit__(*exc_info)


def num_replicas() -> int:
    """Returns how many replicas the strategy has whose step is being traced."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def is_whole() -> bool:
    """Whether the batch being traced is all of the examples that one update is made from.

    So is one outside of `fit` in a job that builds no strategy: each worker computes it as one process would.
    """
    is_outside = default_strategy.builds_none() and not current.is_traced
    if is_outside and tf.distribute.in_cross_replica_context():
        return True
    return num_replicas() == 1 and current.total_of is None


def scale_by_share(loss: Any) -> Any:
    """Scales a local mean so that its sum over replicas is the mean over the global batch."""
    if is_whole() or current.rule is not LossRule.SCALED:
        return loss
    share = current.share
    return loss * tf.cast(1.0 / num_replicas() if share is None else share, loss.dtype)


def unscale_by_share(loss: Any) -> Any:
    """Undoes `scale_by_share`: returns the local mean, and 0 for a padding example."""
    if is_whole() or current.rule is LossRule.LOCAL_MEAN:
        return loss
    share = current.share
    if share is None:
        return loss * tf.cast(num_replicas(), loss.dtype)
    return tf.math.divide_no_nan(loss, tf.cast(share, loss.dtype))


def scale_sum(loss: Any) -> Any:
    """Scales a sum over the replica's examples so that replicas add up to that of the global batch."""
    weight = local_mean_weight()  # that the gradient is multiplied with later
    return loss if weight is None else tf.math.divide_no_nan(loss, tf.cast(weight, loss.dtype))


def in_proportion(amount: tf.Tensor) -> tf.Tensor:
    """Returns what this replica would have of an amount if it had its share of it: a collective.

    A mean over the valid entries of a mask, or by sample weights, divides by an amount that replicas do not
    have in proportion to their examples. Divided by this one, and weighted by the share, it is the mean over
    the global batch.

    Args:
      amount: Scalar of this replica.
    """
    if current.total_of is not None and current.share is not None:
        total = current.total_of(tf.stop_gradient(amount))
        return total * tf.cast(current.share, amount.dtype)
    context = tf.distribute.get_replica_context()
    if gradient_probe.active() is not None:
        return tf.identity(amount, name=linearity.OF_WHOLE_BATCH)  # which it is once the step runs
    if num_replicas() == 1 or context is None:
        return amount
    share = _share()
    own = tf.where(share > 0, amount, tf.zeros_like(amount))
    total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(own))
    return total * tf.cast(share, amount.dtype)


def of_step(metric: Any, value: Any, weight: Any) -> tuple[Any, Any]:
    """Returns what a `Mean` metric takes on this replica for a scalar of the user's step, and its weight.

    The mean over the replicas is then that of the global batch, also where the scalar is a sum over the
    replica's examples. A weight that the step gives is left to it.
    """
    if weight is not None:
        if (probe := gradient_probe.active()) is not None:
            probe.note_mean(metric, tf.convert_to_tensor(value), is_weighted=True)
        return value, weight
    value = tf.convert_to_tensor(value)
    if not value.dtype.is_floating:  # a share of one would be cut off
        value = tf.cast(value, tf.float32)
    if (probe := gradient_probe.active()) is not None:
        probe.note_mean(metric, value, is_weighted=False)
    weight = step_weight(value.dtype)
    if weight is not None and (current.rule, current.is_evaluation) in _takers_of_sums.get(metric, ()):
        value = tf.math.divide_no_nan(value, weight)
    return value, weight


def set_takers_of_sums(
    metrics: Iterable[Any], rule: LossRule, *, among: Iterable[Any], is_evaluation: bool = False
) -> None:
    """Says which `Mean` metrics `among` those of a step that runs by a rule are given sums."""
    of_kind = {(one, is_evaluation) for one in LossRule}
    for metric in among:
        _takers_of_sums[metric] = _takers_of_sums.get(metric, frozenset()) - of_kind
    for metric in metrics:
        _takers_of_sums[metric] |= {(rule, is_evaluation)}


def takes_sums(metric: Any) -> bool:
    """Whether a `Mean` metric is given sums, by any rule."""
    return bool(_takers_of_sums.get(metric))


def step_weight(dtype: tf.DType) -> tf.Tensor | None:
    """Returns what a value of one batch counts on this replica, where it counts 1 on one device.

    None outside of a step of several replicas.
    """
    if is_whole() or not current.is_traced:
        return None
    return tf.cast(_share(), dtype)


def is_local_mean() -> bool:
    """Whether the losses of the step being traced are means over the replica's own examples."""
    return current.rule is LossRule.LOCAL_MEAN


def is_sum() -> bool:
    """Whether they are sums over the replica's own examples."""
    return current.rule is LossRule.SUM


def local_mean_weight() -> tf.Tensor | None:
    """Returns what a local mean weighs in the global one, a scalar; None for a loss that is scaled."""
    if is_whole() or current.rule is not LossRule.LOCAL_MEAN:
        return None
    return _share()


def synchronized_moments(compute: Callable[[Any], Any], inputs: Any) -> Any:
    """Returns what `compute` makes of the inputs of all replicas, with the gradient of the global batch.

    The gradient of a reduction over replicas is the sum of theirs, each weighted by its share. The weight of
    a local mean is applied after the reduction, by `weighted_gradient`, with this replica's share alone.
    """
    weight = local_mean_weight()
    if weight is None:
        return compute(inputs)
    outputs = compute(_with_gradient_times(inputs, tf.math.divide_no_nan(tf.ones_like(weight), weight)))
    return tf.nest.map_structure(lambda one: _with_gradient_times(one, weight), outputs)


def _with_gradient_times(value: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def identity(given: tf.Tensor) -> Any:
        return tf.identity(given), lambda upstream: upstream * tf.cast(factor, upstream.dtype)

    return identity(value)


def _share() -> tf.Tensor:
    share = current.share
    return tf.constant(1.0 / num_replicas(), SHARE_TYPE) if share is None else share


def weighted_gradient(gradient: Any) -> Any:
    """Returns a replica's gradient (tensor, `tf.IndexedSlices` or None) as it goes into the sum over
    replicas.

    Of a replica that has only a padding example it is zero. Losses that sum over examples know no share that
    could be 0, and 0 times an overflow would be NaN.
    """
    if gradient is None:
        return None
    weight, share = local_mean_weight(), current.share

    def weighted(values: tf.Tensor) -> tf.Tensor:
        values = values if weight is None else values * tf.cast(weight, values.dtype)
        return values if share is None else tf.where(share > 0, values, tf.zeros_like(values))

    return with_values(gradient, weighted)
