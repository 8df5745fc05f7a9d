"""Train functions with optimizers of the user's own, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import flat
from tests.support.inside import forget_notes, notes_of

keras = tf.keras


def trained_by(ctx: Any, *, kinds: Sequence[str]) -> dict[str, Any]:
    """Trains by Keras's losses and each optimizer; returns weights by optimizer, and what was noted of it."""
    x = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    results: dict[str, Any] = {}
    notes = {}
    for kind in kinds:
        forget_notes(ctx)
        keras.utils.set_random_seed(3)
        with ctx.strategy.scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            is_each = kind in ("a mean of its own", "clips for each example")
            loss = keras.losses.MeanSquaredError(**({"reduction": "none"} if is_each else {}))
            model.compile(_optimizer(keras, kind), loss=loss)
        model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=2, verbose=0)
        results[kind] = flat(model)
        notes[kind] = notes_of(ctx)
    return {**results, "notes": notes}


def _optimizer(keras: Any, kind: str) -> Any:
    legacy = getattr(keras.optimizers, "legacy", keras.optimizers).SGD

    class Mean(legacy):  # type: ignore[misc, valid-type]
        def _compute_gradients(
            self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
        ) -> Any:
            with tape:
                mean = tf.reduce_mean(loss)
            return list(zip(tape.gradient(mean, var_list), var_list, strict=True))

    class EachClipped(legacy):  # type: ignore[misc, valid-type]
        def _compute_gradients(
            self, loss: Any, var_list: Any, grad_loss: Any = None, tape: Any = None
        ) -> Any:
            jacobians = tape.jacobian(loss, var_list)
            of_each = [tf.reduce_sum(tf.reshape(one, [tf.shape(one)[0], -1]) ** 2, 1) for one in jacobians]
            factors = 1.0 / tf.maximum(1.0, tf.sqrt(tf.add_n(of_each)))
            means = [
                tf.tensordot(factors, one, 1) / tf.cast(tf.size(factors), tf.float32) for one in jacobians
            ]
            return list(zip(means, var_list, strict=True))

    class Aggregating(keras.optimizers.SGD):  # type: ignore[misc, name-defined]
        def aggregate_gradients(self, grads_and_vars: Any) -> Any:
            gradients, variables = zip(*grads_and_vars, strict=True)
            context = tf.distribute.get_replica_context()
            means = context.all_reduce(tf.distribute.ReduceOp.MEAN, gradients)
            return list(zip(means, variables, strict=True))

    class Clipping(keras.optimizers.SGD):  # type: ignore[misc, name-defined]
        def apply_gradients(self, grads_and_vars: Any, **options: Any) -> Any:
            gradients, variables = zip(*grads_and_vars, strict=True)
            gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
            return super().apply_gradients(list(zip(gradients, variables, strict=True)), **options)

    class Centred(keras.optimizers.SGD):  # type: ignore[misc, name-defined]
        def apply_gradients(self, grads_and_vars: Any, **options: Any) -> Any:
            pairs = [(one - tf.reduce_mean(one, axis=0), variable) for one, variable in grads_and_vars]
            return super().apply_gradients(pairs, **options)

    if kind == "an aggregator":

        def aggregate(pairs: Any) -> Any:
            context = tf.distribute.get_replica_context()
            return [(context.all_reduce(tf.distribute.ReduceOp.SUM, one), of) for one, of in pairs]

        return legacy(0.1, gradient_aggregator=aggregate)
    classes = {
        "a mean of its own": Mean,
        "clips for each example": EachClipped,
        "aggregates by itself": Aggregating,
        "clips": Clipping,
        "centres": Centred,
    }
    return classes[kind](0.1)
