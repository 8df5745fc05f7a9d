"""Train functions that tests run in real TensorFlow tasks. Import TensorFlow inside only."""

from __future__ import annotations

from typing import Any

import numpy as np


def examples(count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns features `[count, 6]` and labels `[count]` in 0..2 that depend on them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(axis=1).astype("int64")
    return x, y


def dense_model(keras: Any, optimizer: str, *, steps_per_execution: int = 1, metrics: tuple[str, ...] = ()) -> Any:
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(1e-3)),
        ]
    )
    rates = {"sgd": keras.optimizers.SGD(0.1, momentum=0.9), "adam": keras.optimizers.Adam(0.01)}
    model.compile(
        optimizer=rates[optimizer],
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=list(metrics),
        steps_per_execution=steps_per_execution,
    )
    return model


def weights_of_every_way(ctx: Any, *, batch_size: int, count: int, epochs: int) -> dict[str, Any]:
    """Trains the same model in each way and returns the final weights by way, flattened."""
    import tensorflow as tf

    result = {}
    for optimizer in ("sgd", "adam"):
        for steps_per_execution in (1, 10):
            result[f"fit-{optimizer}-{steps_per_execution}"] = _fit(
                ctx, optimizer, steps_per_execution, batch_size=batch_size, count=count, epochs=epochs
            )
            result[f"train_steps-{optimizer}-{steps_per_execution}"] = _train_steps(
                ctx, optimizer, steps_per_execution, batch_size=batch_size, count=count, epochs=epochs
            )
    del tf
    return result


def _dataset(batch_size: int, count: int) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(examples(count)).shuffle(count, seed=3).batch(batch_size)


def _flat(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def _fit(ctx: Any, optimizer: str, steps: int, *, batch_size: int, count: int, epochs: int) -> np.ndarray:
    import tensorflow as tf

    with ctx.strategy.scope():
        model = dense_model(tf.keras, optimizer, steps_per_execution=steps, metrics=("accuracy",))
    model.fit(_dataset(batch_size, count), epochs=epochs, verbose=0)
    return _flat(model)


def _train_steps(ctx: Any, optimizer: str, steps: int, *, batch_size: int, count: int, epochs: int) -> np.ndarray:
    import tensorflow as tf

    with ctx.strategy.scope():
        model = dense_model(tf.keras, optimizer)
        model.optimizer.build(model.trainable_variables)

    def step_fn(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
            loss += tf.nn.scale_regularization_loss(tf.add_n(model.losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": tf.reduce_mean(losses)}

    dataset = _dataset(batch_size, count - count % batch_size)
    ctx.train_steps(step_fn, dataset, num_steps=epochs * (count // batch_size), steps_per_call=steps)
    return _flat(model)
