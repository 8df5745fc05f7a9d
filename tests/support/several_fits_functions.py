"""Train functions that call `fit` several times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.inside import notes_of

keras = tf.keras


def several_fits(ctx: Any, *, dies: Sequence[int] = (), rate: float = 0.2) -> dict[str, Any]:
    """Trains three models in four fits, and evaluates each; returns what the program sees after each fit.

    Args:
      dies: By attempt the fit in whose second epoch it raises.
      rate: Of Dropout.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 5)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    keras.utils.set_random_seed(3)
    seen: list[dict[str, Any]] = []
    dying = dies[ctx.attempt] if ctx.attempt < len(dies) else None

    class Die(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if dying == len(seen) and self.epoch == 1 and batch == 1:
                raise OSError("as asked")

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

    class Stop(keras.callbacks.Callback):  # type: ignore[misc]
        """Stops the training, and changes the weights when it has ended."""

        def __init__(self) -> None:
            super().__init__()
            self.losses: list[float] = []

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.losses.append(float(logs["loss"]))
            self.model.stop_training = epoch == 1

        def on_train_end(self, logs: Any = None) -> None:
            kernel = self.model.layers[-1].kernel
            kernel.assign(kernel * 0.5 + float(np.mean(self.losses)))

        def get_state(self) -> dict[str, Any]:
            return {"losses": self.losses}

        def set_state(self, state: dict[str, Any]) -> None:
            self.losses = list(state["losses"])

    def make(hidden: Any = list, **options: Any) -> Any:
        with ctx.strategy.scope():
            model = keras.Sequential([keras.layers.Input((5,)), *hidden(), keras.layers.Dense(1)])
            model.compile(keras.optimizers.Adam(0.05, **options), "mse", metrics=["mae"])
        return model

    def ended(model: Any, history: Any, callback: Any, names: tuple[str, ...]) -> None:
        evaluated = ctx.evaluate(model, held_out)
        seen.append(
            {
                "history": {name: [float(one) for one in found] for name, found in history.history.items()},
                "epochs": history.epoch,
                "params": {name: history.params[name] for name in ("epochs", "steps")},
                "stopped": model.stop_training,
                "callback": {name: np.asarray(getattr(callback, name)).tolist() for name in names},
                "evaluated": {name: float(one) for name, one in evaluated.items()},
                "predicted": float(np.abs(ctx.predict(model, x[:7])).sum()),
                "weights": [float(np.abs(one).sum()) for one in model.get_weights()],
                "iterations": int(model.optimizer.iterations.numpy()),
                "step": ctx.step,
                "draw": float(tf.random.uniform([])),
            }
        )

    def rows(first: int, last: int) -> Any:
        def make_rows() -> Any:
            return tf.data.Dataset.from_tensor_slices((x[first:last], y[first:last])).batch(24)

        return make_rows if ctx.coordinator is not None else make_rows()

    def fit(model: Any, *callbacks: Any, epochs: int) -> Any:
        given = {
            "epochs": epochs,
            "validation_data": held_out,
            "callbacks": [*callbacks, Die()],
            "verbose": 0,
        }
        if ctx.coordinator is not None:
            return ctx.fit(model, rows(0, 96), steps_per_epoch=4, **given)
        return ctx.fit(model, x, y, batch_size=24, **given)

    held_out = rows(0, 24)
    first = make(lambda: [keras.layers.Dense(6, "relu")])
    early = keras.callbacks.EarlyStopping(
        "val_loss", min_delta=100.0, patience=2, restore_best_weights=True, verbose=0
    )
    ended(first, fit(first, early, epochs=9), early, ("best", "wait", "stopped_epoch"))

    with ctx.strategy.scope():
        first.layers[0].trainable = False
        first.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    reduce = keras.callbacks.ReduceLROnPlateau("loss", min_delta=100.0, patience=1)
    ended(first, fit(first, reduce, epochs=3), reduce, ("best", "wait", "cooldown_counter"))

    second = make(lambda: [keras.layers.Dense(4, "tanh"), keras.layers.Dropout(rate)])
    if ctx.coordinator is not None:
        history = fit(second, epochs=2)
    else:
        history = second.fit(rows(0, 96), epochs=2, verbose=0, callbacks=[*ctx.callbacks(), Die()])
    ended(second, history, None, ())

    third, stop = make(use_ema=True), Stop()
    ended(third, fit(third, stop, epochs=4), stop, ("losses",))
    return {"seen": seen, "notes": notes_of(ctx)}
