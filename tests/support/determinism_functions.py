"""Train functions that ask for deterministic operations, or that test what is measured of the input."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from raydist.training.stepping import step_timing
from tests.support.in_tasks import flat
from tests.support.train_functions import bare_step, examples, made


def trained(ctx: Any, *, asks: bool) -> dict[str, Any]:
    """Trains by fit, by packed fit, by plain fit and by train_steps; returns the weights of each.

    Args:
      asks: Whether to call enable_op_determinism, as a user does at the top of the train function.
    """
    if asks:
        tf.config.experimental.enable_op_determinism()
    result = {}
    for way, fit in {
        "ctx.fit": ctx.fit,
        "fit": lambda model, data, **kwargs: model.fit(data, **kwargs),
    }.items():
        for steps in (1, 4):
            model = made(ctx, "adam", steps_per_execution=steps, metrics=("accuracy",))
            fit(model, _data(), epochs=3)
            result[f"{way}-{steps}"] = flat(model)
    model = made(ctx, "adam", is_built=True)

    ctx.train_steps(bare_step(model, global_batch_size=16), _data(), num_steps=12, steps_per_call=3)
    result["train_steps"] = flat(model)
    return result


def _data() -> Any:
    return tf.data.Dataset.from_tensor_slices(examples(96)).shuffle(96).batch(16)


def seeds_beside(ctx: Any) -> dict[str, Any]:
    """Returns weights of two models, one with layers and copies that may draw numbers, and two masks."""
    layers = tf.keras.layers

    def weights_with(*others: Any) -> Any:
        tf.keras.utils.set_random_seed(5)
        more = [make(0.5) for make in others]
        copies = [type(one).from_config({**one.get_config(), "name": f"{one.name}_copy"}) for one in more]
        model = tf.keras.Sequential([tf.keras.Input((4,)), layers.Dense(3), *more, *copies, layers.Dense(2)])
        return model, model.get_weights()[-2]

    model, kernel = weights_with(layers.Dropout, layers.GaussianNoise, layers.Dropout)
    _, alone = weights_with()
    first, _, second, *_ = [layer for layer in model.layers if not isinstance(layer, layers.Dense)]
    ones = tf.ones((64, 3))
    return {
        "kernel": kernel,
        "alone": alone,
        "masks": tf.stack([one(ones, training=True) for one in (first, second)]).numpy(),
    }


def asked_between(ctx: Any) -> dict[str, Any]:
    """Returns the weights of fits between which the user asks, and what TensorFlow does then."""

    model = made(ctx, "sgd")
    stamp = tf.function(tf.timestamp)
    stamp()
    ctx.fit(model, _data(), epochs=1)
    model.fit(_data(), epochs=1, verbose=0)
    tf.config.experimental.enable_op_determinism()
    model.fit(_data(), epochs=1, verbose=0)
    ctx.fit(model, _data(), epochs=2)
    found = {"weights": flat(model), "waited": step_timing.read_input_clock().waited_s}
    try:
        stamp()
    except tf.errors.FailedPreconditionError:
        return {**found, "refused": True}
    return {**found, "refused": False}
