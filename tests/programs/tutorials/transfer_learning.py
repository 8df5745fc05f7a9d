"""Transfer learning in two stages: a frozen base, then its last layers too, from the epoch that is next."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def make_base() -> Any:
    inputs = layers.Input(shape=(8, 8, 3))
    x = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU(6.0)(x)
    x = layers.Conv2D(6, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return keras.Model(inputs, layers.ReLU(6.0)(x), name="base")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(14)
    rng = np.random.default_rng(14)
    images = rng.integers(0, 256, (64, 8, 8, 3)).astype("float32")
    labels = rng.integers(0, 2, (64, 1)).astype("float32")
    rows = tf.data.Dataset.from_tensor_slices((images, labels))
    train_dataset = rows.take(40).shuffle(40, seed=14).batch(8).prefetch(tf.data.AUTOTUNE)
    validation_dataset, test_dataset = rows.skip(40).take(16).batch(8), rows.skip(56).batch(8)
    with ctx.strategy.scope():
        base_model = make_base()
        base_model.trainable = False
        inputs = layers.Input(shape=(8, 8, 3))
        x = layers.Rescaling(1.0 / 127.5, offset=-1)(inputs)
        x = base_model(x, training=False)
        x = layers.GlobalAveragePooling2D()(x)
        x = layers.Dropout(0.0)(x)
        model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(x))
        model.compile(
            optimizer=keras.optimizers.Adam(learning_rate=0.01, epsilon=1e-5),
            loss=keras.losses.BinaryCrossentropy(),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.5, name="accuracy")],
        )
    values: dict[str, Any] = {"before": model.evaluate(validation_dataset, verbose=0)}
    history = model.fit(
        train_dataset, epochs=2, validation_data=validation_dataset, verbose=0, callbacks=[*callbacks]
    )
    values |= {f"frozen {name}": one for name, one in history.history.items()}
    with ctx.strategy.scope():
        base_model.trainable = True
        for layer in base_model.layers[:3]:
            layer.trainable = False
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.RMSprop(learning_rate=0.001, epsilon=1e-5),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.5, name="accuracy")],
        )
    fine = model.fit(
        train_dataset,
        epochs=4,
        initial_epoch=len(history.epoch),
        validation_data=validation_dataset,
        verbose=0,
        callbacks=[*callbacks],
    )
    values |= {f"tuned {name}": one for name, one in fine.history.items()}
    values["epochs"] = [*history.epoch, *fine.epoch]
    values["after"] = model.evaluate(test_dataset, verbose=0)
    values["predicted"] = model.predict_on_batch(images[56:]).flatten()
    return outcome(values, models=[model])
