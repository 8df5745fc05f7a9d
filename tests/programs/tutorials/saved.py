"""Save and load, and models that are stopped before they overfit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


def create_model() -> Any:
    model = keras.Sequential(
        [layers.Input((12,)), layers.Dense(8, activation="relu"), layers.Dropout(0.0), layers.Dense(4)]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def saved(ctx: Any, callbacks: Any, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    rng = np.random.default_rng(20)
    x, y = rng.normal(size=(64, 12)).astype("float32"), rng.integers(0, 4, 64)
    test = (x[48:], y[48:])
    with ctx.strategy.scope():
        model = create_model()
    # The chief alone writes it, so it is in a folder of all tasks.
    checkpoint = Path(tempfile.gettempdir(), "cp-{epoch:04d}.weights.h5")
    every_epoch = keras.callbacks.ModelCheckpoint(str(checkpoint), save_weights_only=True, verbose=0)
    history = model.fit(
        x, y, epochs=2, batch_size=16, validation_data=test, callbacks=[every_epoch, *callbacks], verbose=0
    )
    values: dict[str, Any] = dict(history.history)
    with ctx.strategy.scope():
        other = create_model()
    values["untrained"] = other.evaluate(*test, verbose=0)
    other.load_weights(str(checkpoint).format(epoch=1))
    values["loaded"] = other.evaluate(*test, verbose=0)
    model.save_weights(folder / "manual.weights.h5")
    with ctx.strategy.scope():
        third = create_model()
    third.load_weights(folder / "manual.weights.h5")
    values["manual"] = third.evaluate(*test, verbose=0)
    model.save(folder / "my_model.keras")
    with ctx.strategy.scope():
        new_model = keras.models.load_model(folder / "my_model.keras")
    values["whole"] = new_model.evaluate(*test, verbose=0)
    values["predicted"] = new_model.predict(x, verbose=0).ravel()
    more = new_model.fit(x, y, epochs=1, batch_size=16, verbose=0, callbacks=[*callbacks])
    values |= {f"more {name}": one for name, one in more.history.items()}
    # Not `other`: Keras builds the optimizer of an evaluated model in a strategy's scope only.
    return values, [model, new_model]


def overfit(ctx: Any, callbacks: Any, folder: Path) -> tuple[dict[str, Any], list[Any]]:
    rng = np.random.default_rng(21)
    rows = (rng.normal(size=(80, 7)).astype("float32"), rng.integers(0, 2, (80, 1)).astype("float32"))
    packed = tf.data.Dataset.from_tensor_slices(rows)
    validate_ds = packed.take(16).cache().batch(16)
    schedule = keras.optimizers.schedules.InverseTimeDecay(
        0.01, decay_steps=4 * 10, decay_rate=1, staircase=False
    )
    values: dict[str, Any] = {}
    models = []
    for regularizer in (None, "l2"):
        keras.utils.set_random_seed(21)
        # Another shuffle for each model: how far the first `fit` read ahead decides the next order of one.
        train_ds = packed.skip(16).take(64).cache().shuffle(64, seed=21).repeat().batch(16)
        with ctx.strategy.scope():
            model = keras.Sequential(
                [layers.Dense(6, activation="elu", kernel_regularizer=regularizer), layers.Dense(1)]
            )
            model.compile(
                optimizer=keras.optimizers.Adam(schedule, epsilon=1e-5),
                loss=keras.losses.BinaryCrossentropy(from_logits=True),
                metrics=[
                    keras.metrics.BinaryCrossentropy(from_logits=True, name="binary_crossentropy"),
                    "accuracy",
                ],
            )
        history = model.fit(
            train_ds,
            steps_per_epoch=4,
            epochs=4,
            validation_data=validate_ds,
            callbacks=[
                *callbacks,
                keras.callbacks.EarlyStopping(monitor="val_binary_crossentropy", patience=1),
                keras.callbacks.TensorBoard(folder / f"logs-{regularizer}"),
            ],
            verbose=0,
        )
        values |= {f"{regularizer} {name}": one for name, one in history.history.items()}
        models.append(model)
    return values, models


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    values: dict[str, Any] = {}
    models = []
    for part in (saved, overfit):
        keras.utils.set_random_seed(20)
        with tempfile.TemporaryDirectory() as folder:
            shown, own = part(ctx, callbacks, Path(folder))
        values |= {f"{part.__name__} {name}": one for name, one in shown.items()}
        models += own
    return outcome(values, models=models)
