"""Autoencoders: models that hold Sequential ones without inputs, trained to return what they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class Autoencoder(keras.Model):
    def __init__(self, latent_dim: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = keras.Sequential([layers.Flatten(), layers.Dense(latent_dim, activation="relu")])
        self.decoder = keras.Sequential(
            [layers.Dense(int(np.prod(shape)), activation="sigmoid"), layers.Reshape(shape)]
        )

    def call(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


class Denoise(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [
                layers.Input(shape=(8, 8, 1)),
                layers.Conv2D(4, (3, 3), activation="relu", padding="same", strides=2),
                layers.Conv2D(2, (3, 3), activation="relu", padding="same", strides=2),
            ]
        )
        self.decoder = keras.Sequential(
            [
                layers.Conv2DTranspose(2, kernel_size=3, strides=2, activation="relu", padding="same"),
                layers.Conv2DTranspose(4, kernel_size=3, strides=2, activation="relu", padding="same"),
                layers.Conv2D(1, kernel_size=(3, 3), activation="sigmoid", padding="same"),
            ]
        )

    def call(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


class AnomalyDetector(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = keras.Sequential(
            [layers.Dense(8, activation="relu"), layers.Dense(4, activation="relu")]
        )
        self.decoder = keras.Sequential(
            [layers.Dense(8, activation="relu"), layers.Dense(20, activation="sigmoid")]
        )

    def call(self, x: Any) -> Any:
        return self.decoder(self.encoder(x))


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    rng = np.random.default_rng(6)
    images = rng.random((64, 8, 8)).astype("float32")
    noisy = images[..., None] + 0.2 * rng.normal(size=(64, 8, 8, 1)).astype("float32")
    beats = rng.random((50, 20)).astype("float32")
    given: tuple[tuple[Any, Any, Any, Any], ...] = (
        (lambda: Autoencoder(4, (8, 8)), images, images, keras.losses.MeanSquaredError()),
        (Denoise, np.clip(noisy, 0.0, 1.0), images[..., None], keras.losses.MeanSquaredError()),
        (AnomalyDetector, beats, beats, "mae"),
    )
    values, models = {}, []
    for number, (make, x, y, loss) in enumerate(given):
        keras.utils.set_random_seed(6)
        with ctx.strategy.scope():
            model = make()
            model.compile(optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5), loss=loss)
        history = model.fit(
            x,
            y,
            epochs=2,
            batch_size=16,
            shuffle=True,
            validation_data=(x, y),
            verbose=0,
            callbacks=[*callbacks],
        )
        values |= {f"{number} {name}": one for name, one in history.history.items()}
        encoded = model.encoder(x).numpy()
        values[f"{number} decoded"] = model.decoder(encoded).numpy().ravel()
        values[f"{number} predicted"] = model.predict(x, verbose=0).ravel()
        models.append(model)
    return outcome(values, models=models)
