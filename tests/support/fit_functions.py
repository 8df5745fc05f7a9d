"""Train functions that use the keywords of `ctx.fit`, and `ctx.evaluate` and `ctx.predict`."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.train_functions import dense_model, examples

COUNT = 50  # no multiple of 16: the last batch is uneven


def data_as(way: str) -> Any:
    import tensorflow as tf

    import raydist.data

    x, y = examples(COUNT)
    if way == "batches":
        return raydist.data.from_arrays((x, y)).batches(global_batch_size=16, shuffle=False)
    if way == "function":
        return lambda: tf.data.Dataset.from_tensor_slices(examples(COUNT)).batch(16)
    if way == "arrays":
        return x, y
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)


def flat(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def made(ctx: Any) -> Any:
    import tensorflow as tf

    with ctx.strategy.scope():
        return dense_model(tf.keras, "sgd", metrics=("accuracy",))


def weighted_classes(ctx: Any, *, way: str) -> dict[str, Any]:
    model = made(ctx)
    ctx.fit(model, data_as(way), epochs=2, steps_per_epoch=4, class_weight={0: 1.0, 1: 5.0, 2: 0.2})
    return {"weights": flat(model)}


def later_epochs(ctx: Any, *, way: str, epochs: int = 6) -> dict[str, Any]:
    """Trains from epoch 2 on, and validates every second one on some of the steps."""
    model = made(ctx)
    history = ctx.fit(
        model,
        data_as(way),
        epochs=epochs,
        steps_per_epoch=4,
        initial_epoch=2,
        validation_data=data_as(way),
        validation_steps=2,
        validation_freq=2,
        verbose=0,
    )
    return {
        "weights": flat(model),
        "epochs": history.epoch,
        "step": ctx.step,
        "validations": np.array(history.history["val_loss"]),
    }


def evaluated(ctx: Any, *, way: str) -> dict[str, Any]:
    model = made(ctx)
    whole = ctx.evaluate(model, data_as(way))
    part = ctx.evaluate(model, data_as(way), steps=2)
    return {"whole": whole, "part": part}


def predicted(ctx: Any) -> dict[str, Any]:
    import tensorflow as tf

    model = made(ctx)
    x, _ = examples(COUNT)
    by_array = ctx.predict(model, x)
    by_data = ctx.predict(model, tf.data.Dataset.from_tensor_slices(x).batch(16))
    np.testing.assert_allclose(by_array, by_data, atol=1e-6)
    return {"outputs": by_data}


def weighted_by_keras(ctx: Any) -> dict[str, Any]:
    model = made(ctx)
    weights = {0: 1.0, 1: 5.0, 2: 0.2}
    model.fit(data_as("data set"), epochs=2, steps_per_epoch=4, class_weight=weights, verbose=0)
    return {"weights": flat(model)}
