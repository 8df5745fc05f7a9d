"""Classification of images: arrays that Keras shuffles, a data set of batches, predictions of one image."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    rng = np.random.default_rng(15)
    images = rng.integers(0, 256, (96, 8, 8)).astype("uint8")
    labels = rng.integers(0, 10, 96).astype("uint8")
    values: dict[str, Any] = {}
    keras.utils.set_random_seed(15)
    with ctx.strategy.scope():
        basic = keras.Sequential(
            [layers.Input((8, 8)), layers.Flatten(), layers.Dense(8, activation="relu"), layers.Dense(10)]
        )
        basic.compile(
            optimizer=keras.optimizers.Adam(epsilon=1e-5),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = basic.fit(images / 255.0, labels, epochs=2, verbose=0, callbacks=[*callbacks])
    values |= {f"basic {name}": one for name, one in history.history.items()}
    values["basic after"] = basic.evaluate(images / 255.0, labels, verbose=0)
    with ctx.strategy.scope():
        probability_model = keras.Sequential([basic, layers.Softmax()])
    values["basic predicted"] = probability_model.predict(images / 255.0, verbose=0).ravel()
    values["basic one"] = probability_model.predict(images[:1] / 255.0, verbose=0).ravel()

    keras.utils.set_random_seed(15)
    rows = tf.data.Dataset.from_tensor_slices((images[..., None].astype("float32"), labels.astype("int32")))
    train_ds = rows.take(80).batch(16).cache().shuffle(10, seed=15).prefetch(tf.data.AUTOTUNE)
    val_ds = rows.skip(80).batch(16).cache().prefetch(tf.data.AUTOTUNE)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                layers.Rescaling(1.0 / 255, input_shape=(8, 8, 1))
                if not hasattr(keras, "ops")
                else layers.Rescaling(1.0 / 255),
                layers.Conv2D(4, 3, padding="same", activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(10, name="outputs"),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(epsilon=1e-5),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(train_ds, validation_data=val_ds, epochs=3, verbose=0, callbacks=[*callbacks])
    values |= {f"flowers {name}": one for name, one in history.history.items()}
    img_array = tf.expand_dims(images[3, ..., None].astype("float32"), 0)
    values["flowers one"] = model.predict(img_array, verbose=0).ravel()
    values["flowers all"] = model.predict(val_ds, verbose=0).ravel()
    return outcome(values, models=[basic, model])
