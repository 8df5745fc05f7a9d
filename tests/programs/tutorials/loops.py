"""Loops of steps under `@tf.function` without `strategy.run`: DCGAN, pix2pix, and a model with test steps.

Each worker takes all of the data, so it trains what one device trains, with dropout and noise too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)


def dcgan(ctx: Any, callbacks: Any) -> tuple[dict[str, Any], list[Any], list[Any]]:
    images = np.random.default_rng(7).normal(size=(32, 8, 8, 1)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(32, seed=7).batch(8)
    with ctx.strategy.scope():
        generator = keras.Sequential(
            [
                layers.Input((5,)),
                layers.Dense(4 * 4 * 4, use_bias=False),
                layers.BatchNormalization(),
                layers.LeakyReLU(),
                layers.Reshape((4, 4, 4)),
                layers.Conv2DTranspose(1, 3, strides=2, padding="same", use_bias=False, activation="tanh"),
            ]
        )
        discriminator = keras.Sequential(
            [
                layers.Input((8, 8, 1)),
                layers.Conv2D(4, 3, strides=2, padding="same"),
                layers.LeakyReLU(),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        generator_optimizer = keras.optimizers.Adam(1e-3, epsilon=1e-4)
        discriminator_optimizer = keras.optimizers.Adam(1e-3, epsilon=1e-4)

    @tf.function
    def train_step(images: Any, noise: Any) -> Any:
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            generated = generator(noise, training=True)
            real_output = discriminator(images, training=True)
            fake_output = discriminator(generated, training=True)
            gen_loss = cross_entropy(tf.ones_like(fake_output), fake_output)
            disc_loss = cross_entropy(tf.ones_like(real_output), real_output)
            disc_loss += cross_entropy(tf.zeros_like(fake_output), fake_output)
        for model, optimizer, tape, loss in (
            (generator, generator_optimizer, gen_tape, gen_loss),
            (discriminator, discriminator_optimizer, disc_tape, disc_loss),
        ):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return gen_loss, disc_loss

    noises, losses = np.random.default_rng(8), []
    for _ in range(2):
        for batch in dataset:
            noise = noises.normal(size=(batch.shape[0], 5)).astype("float32")
            losses.append([float(one) for one in train_step(batch, noise)])
    values = {
        "losses": np.ravel(losses),
        "image": generator(np.ones((1, 5), "float32"), training=False).numpy().ravel(),
    }
    return values, [generator, discriminator], [generator_optimizer, discriminator_optimizer]


def pix2pix(ctx: Any, callbacks: Any) -> tuple[dict[str, Any], list[Any], list[Any]]:
    rng = np.random.default_rng(9)
    pairs = tuple(rng.normal(size=(6, 8, 8, 2)).astype("float32") for _ in range(2))
    dataset = tf.data.Dataset.from_tensor_slices(pairs).batch(1)

    def downsample(filters: int) -> Any:
        return keras.Sequential(
            [
                layers.Conv2D(filters, 4, strides=2, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.LeakyReLU(),
            ]
        )

    def upsample(filters: int) -> Any:
        return keras.Sequential(
            [
                layers.Conv2DTranspose(filters, 4, strides=2, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.Dropout(0.0),
                layers.ReLU(),
            ]
        )

    with ctx.strategy.scope():
        inputs = layers.Input(shape=(8, 8, 2))
        first = downsample(3)(inputs)
        second = downsample(4)(first)
        up = layers.Concatenate()([upsample(3)(second), first])
        last = layers.Conv2DTranspose(2, 4, strides=2, padding="same", activation="tanh")(up)
        generator = keras.Model(inputs=inputs, outputs=last)
        given, target = layers.Input(shape=(8, 8, 2)), layers.Input(shape=(8, 8, 2))
        both = downsample(3)(layers.concatenate([given, target]))
        discriminator = keras.Model(inputs=[given, target], outputs=layers.Conv2D(1, 2)(both))
        optimizers = [keras.optimizers.Adam(2e-3, beta_1=0.5, epsilon=1e-4) for _ in range(2)]

    @tf.function
    def train_step(input_image: Any, target: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            output = generator(input_image, training=True)
            real = discriminator([input_image, target], training=True)
            fake = discriminator([input_image, output], training=True)
            gan_loss = cross_entropy(tf.ones_like(fake), fake)
            l1_loss = tf.reduce_mean(tf.abs(target - output))
            gen_loss = gan_loss + 100.0 * l1_loss
            disc_loss = cross_entropy(tf.ones_like(real), real) + cross_entropy(tf.zeros_like(fake), fake)
        for model, optimizer, loss in zip(
            (generator, discriminator), optimizers, (gen_loss, disc_loss), strict=True
        ):
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return gen_loss, gan_loss, l1_loss, disc_loss

    losses = []
    for _, (input_image, target) in dataset.repeat().take(8).enumerate():
        losses.append([float(one) for one in train_step(input_image, target)])
    return {"losses": np.ravel(losses)}, [generator, discriminator], optimizers


def quickstart(ctx: Any, callbacks: Any) -> tuple[dict[str, Any], list[Any], list[Any]]:
    rng = np.random.default_rng(10)
    x, y = rng.normal(size=(40, 6)).astype("float32"), rng.integers(0, 3, 40)
    train_ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(40, seed=10).batch(16)
    with ctx.strategy.scope():
        model = keras.Sequential([layers.Dense(8, activation="relu"), layers.Dense(3)])
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
        optimizer = keras.optimizers.Adam(0.01, epsilon=1e-5)
        metrics = [
            keras.metrics.Mean(name="train_loss"),
            keras.metrics.SparseCategoricalAccuracy(name="train"),
        ]
        tested = keras.metrics.SparseCategoricalAccuracy(name="test")

    @tf.function
    def train_step(x: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = tf.reduce_mean(loss_object(labels, predictions))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        metrics[0](loss)
        metrics[1](labels, predictions)

    @tf.function
    def test_step(x: Any, labels: Any) -> None:
        tested(labels, model(x, training=False))

    shown: dict[str, list[float]] = {"train_loss": [], "train": [], "test": []}
    for _ in range(2):
        for metric in (*metrics, tested):
            metric.reset_state()
        for batch, labels in train_ds:
            train_step(batch, labels)
        for batch, labels in train_ds:
            test_step(batch, labels)
        for metric in (*metrics, tested):
            shown[metric.name].append(float(metric.result()))
    return shown, [model], [optimizer]


LOOPS: tuple[Callable[[Any, Any], tuple[dict[str, Any], list[Any], list[Any]]], ...] = (
    dcgan,
    pix2pix,
    quickstart,
)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    values: dict[str, Any] = {}
    models, optimizers = [], []
    for loop in LOOPS:
        keras.utils.set_random_seed(7)
        shown, own_models, own_optimizers = loop(ctx, callbacks)
        values |= {f"{loop.__name__} {name}": one for name, one in shown.items()}
        models += own_models
        optimizers += own_optimizers
    return outcome(values, models=models, optimizers=optimizers)
