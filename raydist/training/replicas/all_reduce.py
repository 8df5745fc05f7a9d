"""The all-reduce of gradients, with the options of the job, and rounded to a smaller type if asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

# Of a tensor: the sum over replicas of its largest values is scaled to this. float16 holds 65504.
_FP16_SCALED = 2.0**14
# What divides it: a smaller sum would make the factor infinite.
_LEAST_MAXIMUM = 1e-30
# Significant bits, the leading one included: rounding is off by at most 2 ** -bits of a value.
_BITS = {tf.float16: 11, tf.bfloat16: 8}
_COMPRESSED = (tf.float32, tf.float64)


class _ReduceSettings:
    options: tf.distribute.experimental.CommunicationOptions | None = None
    compression: tf.DType | None = None


def configure(
    options: tf.distribute.experimental.CommunicationOptions | None, *, compression: tf.DType | None
) -> None:
    """Sets how gradients are reduced in this process.

    Args:
      options: As the strategy was given them. Where it reduces without `merge_call`, as on GPUs, TensorFlow
        takes them from the call alone (collective_all_reduce_strategy.py, `_replica_ctx_all_reduce`).
      compression: tf.float16 or tf.bfloat16; None sums gradients as they are.
    """
    _ReduceSettings.options, _ReduceSettings.compression = options, compression


def is_configured() -> bool:
    """Whether gradients have to be reduced by `sum_over_replicas`; other reductions round nothing."""
    return _ReduceSettings.compression is not None


def note_on(strategy: tf.distribute.Strategy) -> str | None:
    """Returns the sentence on what compression does to the results; None where it does nothing."""
    kind, num_replicas = _ReduceSettings.compression, strategy.num_replicas_in_sync
    if kind is None or num_replicas == 1:
        return None
    return (
        f"gradients are rounded to {kind.name} before they are summed over {num_replicas} replicas "
        "(--compress-gradients), so weights are not equal to those of one device; each sum is off by at most "
        f"{relative_error(kind, num_replicas):.1e} of the sum of the replicas' absolute values"
    )


def relative_error(kind: tf.DType, num_replicas: int) -> float:
    """Returns a bound for the error of a sum, relative to the sum of the summands' absolute values.

    Each summand is rounded once, and so is each of the `num_replicas - 1` additions.
    """
    return float(num_replicas * 2.0 ** -_BITS[kind])


def sum_over_replicas(gradients: Sequence[Any], context: Any) -> list[Any]:
    """Returns the sums of gradients over replicas, the same on each: a collective."""
    kind = _ReduceSettings.compression
    if kind is None:
        return _reduced(gradients, context)
    is_small = [_dtype(one) in _COMPRESSED for one in gradients]
    scales = _scales(gradients, is_small, context) if kind is tf.float16 else [None] * len(gradients)
    sent = [
        _compressed(one, kind=kind, scale=scale) if small else one
        for one, small, scale in zip(gradients, is_small, scales, strict=True)
    ]
    sums = _reduced(sent, context)
    return [
        _expanded(one, kind=kind, dtype=_dtype(given), scale=scale) if small else one
        for one, given, small, scale in zip(sums, gradients, is_small, scales, strict=True)
    ]


def _reduced(gradients: Sequence[Any], context: Any) -> list[Any]:
    # Of one type at a time: TensorFlow joins what it packs into one tensor.
    found: list[Any] = [None] * len(gradients)
    for dtype in dict.fromkeys(_dtype(one) for one in gradients):
        positions = [index for index, one in enumerate(gradients) if _dtype(one) == dtype]
        own = [gradients[index] for index in positions]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, own, options=_ReduceSettings.options)
        for index, one in zip(positions, sums, strict=True):
            found[index] = one
    return found


def _scales(gradients: Sequence[Any], is_small: Sequence[bool], context: Any) -> list[tf.Tensor | None]:
    """Returns a factor for each gradient with which no sum of it overflows in float16: a collective.

    Small gradients, of which float16 would make zeros, become large enough by it, too. What is not finite
    stays so.
    """
    own = [
        _largest(values_of(one)) if small else tf.constant(0.0)
        for one, small in zip(gradients, is_small, strict=True)
    ]
    [sums] = _reduced([tf.stack(own)], context)
    factors = _FP16_SCALED / tf.maximum(sums, _LEAST_MAXIMUM)
    factors = tf.where(tf.math.is_finite(sums), factors, tf.ones_like(factors))
    return list(tf.unstack(factors, num=len(own)))


def _largest(values: tf.Tensor) -> tf.Tensor:
    # That of no values is the least number there is.
    return tf.maximum(tf.cast(tf.reduce_max(tf.abs(values)), tf.float32), 0.0)


def _compressed(gradient: Any, *, kind: tf.DType, scale: tf.Tensor | None) -> Any:
    def compressed(values: tf.Tensor) -> tf.Tensor:
        small = tf.cast(values if scale is None else values * tf.cast(scale, values.dtype), kind)
        # Sparse gradients are gathered, which TensorFlow cannot do with bfloat16: the bits alone count.
        return tf.bitcast(small, tf.float16) if isinstance(gradient, tf.IndexedSlices) else small

    return with_values(gradient, compressed)


def _expanded(gradient: Any, *, kind: tf.DType, dtype: tf.DType, scale: tf.Tensor | None) -> Any:
    def expanded(values: tf.Tensor) -> tf.Tensor:
        if isinstance(gradient, tf.IndexedSlices):
            values = tf.bitcast(values, kind)
        values = tf.cast(values, dtype)
        return values if scale is None else values / tf.cast(scale, dtype)

    return with_values(gradient, expanded)


def values_of(gradient: Any) -> Any:
    """Returns a dense gradient, or the values of a sparse one."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def with_values(gradient: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a gradient with what `change` makes of its values."""
    if not isinstance(gradient, tf.IndexedSlices):
        return change(gradient)
    return tf.IndexedSlices(change(gradient.values), gradient.indices, gradient.dense_shape)


def _dtype(gradient: Any) -> tf.DType:
    return values_of(gradient).dtype
