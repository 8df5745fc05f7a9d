"""Forecasts: windows of a time series, baselines that are only evaluated, and a model that feeds itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

WIDTH, FEATURES = 6, 3


class Baseline(keras.Model):
    def call(self, inputs: Any) -> Any:
        return inputs[:, :, :1]


class ResidualWrapper(keras.Model):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return inputs[:, :, :1] + self.model(inputs, *args, **kwargs)


class FeedBack(keras.Model):
    def __init__(self, units: int, out_steps: int) -> None:
        super().__init__()
        self.out_steps = out_steps
        self.lstm_cell = layers.LSTMCell(units)
        self.lstm_rnn = layers.RNN(self.lstm_cell, return_state=True)
        self.dense = layers.Dense(1)
        self.last = layers.Dense(FEATURES)

    def call(self, inputs: Any, training: Any = None) -> Any:
        x, *state = self.lstm_rnn(inputs)
        predictions = [self.dense(x)]
        for _ in range(1, self.out_steps):
            x, state = self.lstm_cell(self.last(x), states=state, training=training)
            predictions.append(self.dense(x))
        return tf.transpose(tf.stack(predictions), [1, 0, 2])


def split_window(features: Any) -> Any:
    inputs, labels = features[:, :WIDTH, :], features[:, 1:, :1]
    inputs.set_shape([None, WIDTH, None])
    labels.set_shape([None, WIDTH, None])
    return inputs, labels


def make_dataset(data: np.ndarray) -> tf.data.Dataset:
    ds = keras.utils.timeseries_dataset_from_array(
        data=data,
        targets=None,
        sequence_length=WIDTH + 1,
        sequence_stride=1,
        shuffle=True,
        seed=19,
        batch_size=16,
    )
    return ds.map(split_window)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    series = np.cumsum(np.random.default_rng(19).normal(size=(90, FEATURES)), axis=0).astype("float32")
    series = (series - series.mean(axis=0)) / series.std(axis=0)
    train_ds, val_ds = make_dataset(series[:60]), make_dataset(series[60:])
    makers: dict[str, Any] = {
        "linear": lambda: keras.Sequential([layers.Dense(units=1)]),
        "conv": lambda: keras.Sequential(
            [
                layers.Conv1D(filters=4, kernel_size=(3,), padding="same", activation="relu"),
                layers.Dense(units=1),
            ]
        ),
        "lstm": lambda: keras.Sequential([layers.LSTM(4, return_sequences=True), layers.Dense(units=1)]),
        "residual": lambda: ResidualWrapper(
            keras.Sequential(
                [layers.LSTM(4, return_sequences=True), layers.Dense(1, kernel_initializer="zeros")]
            )
        ),
        "feedback": lambda: FeedBack(units=4, out_steps=WIDTH),
    }
    with ctx.strategy.scope():
        baseline = Baseline()
        baseline.compile(loss=keras.losses.MeanSquaredError(), metrics=[keras.metrics.MeanAbsoluteError()])
    values: dict[str, Any] = {
        "baseline": list(baseline.evaluate(val_ds, return_dict=True, verbose=0).values())
    }
    models = []
    for name, make in makers.items():
        keras.utils.set_random_seed(19)
        with ctx.strategy.scope():
            model = make()
            model.compile(
                loss=keras.losses.MeanSquaredError(),
                optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
                metrics=[keras.metrics.MeanAbsoluteError()],
            )
        early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=2, mode="min")
        history = model.fit(
            train_ds, epochs=2, validation_data=val_ds, callbacks=[early_stopping, *callbacks], verbose=0
        )
        values |= {f"{name} {key}": one for key, one in history.history.items()}
        values[f"{name} after"] = list(model.evaluate(val_ds, return_dict=True, verbose=0).values())
        values[f"{name} predicted"] = model.predict(next(iter(val_ds))[0], verbose=0).ravel()
        models.append(model)
    return outcome(values, models=models)
