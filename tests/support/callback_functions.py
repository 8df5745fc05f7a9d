"""Train functions with callbacks that write and decide, for several workers."""

from __future__ import annotations

import csv
import glob
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.in_tasks import flat, refusal
from tests.support.inside import notes_of
from tests.support.late import LateModule
from tests.support.train_functions import dense_model, examples, made

tf = LateModule("tensorflow")

EPOCHS = 4


def data(count: int = 64) -> Any:
    return tf.data.Dataset.from_tensor_slices(examples(count)).batch(16, drop_remainder=True)


def watched_model(keras: Any) -> Any:
    """A model that holds a metric: saving it reads what is synchronized on read."""

    legacy = keras.Model.__module__.startswith("tf_keras")

    class Watched(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self, layers: Any) -> None:
            super().__init__()
            self.inner = layers
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, inputs: Any, training: bool = False) -> Any:
            outputs = self.inner(inputs, training=training)
            if not legacy:  # whose `fit` calls the model once outside of the replicas
                self.seen.update_state(outputs)
            return outputs

    return Watched(dense_model(keras, "sgd"))


def fit(ctx: Any, model: Any, way: str, callbacks: list[Any], *, epochs: int = EPOCHS) -> Any:
    named = {"validation_data": data(32), "epochs": epochs, "verbose": 0, "callbacks": callbacks}
    return ctx.fit(model, data(), **named) if way == "ctx" else model.fit(data(), **named)


def with_a_property(logger: Any) -> Any:
    """Returns a subclass of CSVLogger that has its place elsewhere."""

    class OwnLogger(logger):  # type: ignore[misc, valid-type]
        @property
        def filename(self) -> str:
            return str(self.place)

        @filename.setter
        def filename(self, place: str) -> None:
            self.place = place

    return OwnLogger


def writes(ctx: Any, *, way: str, folder: str, port: int) -> dict[str, Any]:
    """Every callback of Keras that writes, with a model whose saving is a collective."""
    keras = tf.keras
    callbacks = keras.callbacks
    place = Path(folder)
    legacy = keras.Model.__module__.startswith("tf_keras")
    with ctx.strategy.scope():
        model = watched_model(keras)
        model(np.zeros([2, 6], "float32"))
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    lines = (place / "lines.txt").open("a") if place.is_dir() else None
    saved = "saved-{epoch}-{val_loss:.2f}" + (".weights" if legacy else ".weights.h5")
    logger_class = callbacks.CSVLogger if way == "ctx" else with_a_property(callbacks.CSVLogger)
    logger = logger_class(str(place / "log.csv"), append=True)
    given = [
        logger,
        callbacks.TensorBoard(str(place / "board"), histogram_freq=1, write_graph=False),
        callbacks.ModelCheckpoint(str(place / saved), save_weights_only=True),
        callbacks.ModelCheckpoint(str(place / "every.weights.h5"), save_weights_only=True, save_freq=3),
        callbacks.RemoteMonitor(root=f"http://127.0.0.1:{port}"),
        callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: print(epoch, sorted(logs), file=lines, flush=True)
        ),
        *([] if legacy else [callbacks.SwapEMAWeights(swap_on_epoch=True)]),
    ]
    history = fit(ctx, model, way, given)
    with (place / "log.csv").open() as rows:
        logged = list(csv.DictReader(rows))
    return {
        "weights": flat(model),
        "losses": np.array(history.history["loss"]),
        "logged": np.array([float(row["loss"]) for row in logged]),
        "named as before": logger.filename == str(place / "log.csv"),
        "scratch": glob.glob(os.path.join(tempfile.gettempdir(), "raydist-callbacks-*")),
    }


def decides(ctx: Any, *, way: str) -> dict[str, Any]:
    """Callbacks that change the rate and end the training, on logs."""
    keras = tf.keras
    with ctx.strategy.scope():
        model = dense_model(keras, "sgd")
    rates: list[float] = []
    plateau = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.08)
    given = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (0.9 if epoch == 1 else 1.0)),
        plateau,
        keras.callbacks.EarlyStopping("loss", patience=2, min_delta=0.05, restore_best_weights=True),
        # Reaches the model, so it runs in every worker.
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate.numpy()))
        ),
    ]
    history = fit(ctx, model, way, given, epochs=30)
    return {"weights": flat(model), "rates": np.array(rates), "epochs": len(history.epoch)}


def backed_up(ctx: Any, *, folder: str) -> dict[str, Any]:
    """A plain fit that ends in its third epoch, another one that continues, and one with no shared folder."""
    keras = tf.keras

    class Crash(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise RuntimeError("on purpose")

    def model_and_callbacks(place: str) -> Any:
        model = made(ctx, "sgd", is_built=True)
        return model, [keras.callbacks.BackupAndRestore(place, delete_checkpoint=False)]

    model, given = model_and_callbacks(folder)
    try:
        fit(ctx, model, "plain", [*given, Crash()])
    except RuntimeError:
        pass
    model, given = model_and_callbacks(folder)
    resumed = fit(ctx, model, "plain", given)
    whole, _ = model_and_callbacks(folder)
    fit(ctx, whole, "plain", [])
    own = f"{folder}-own"
    if ctx.is_chief:
        os.symlink(folder, own)
    other, given = model_and_callbacks(own if ctx.is_chief else f"{own}-{ctx.task.index}")
    told = refusal(fit, ctx, other, "plain", given, epochs=6)
    return {"epochs": resumed.epoch, "resumed": flat(model), "whole": flat(whole), "told": told}


def ends_alone(ctx: Any) -> dict[str, Any]:
    """One worker's callback ends the training: inside an epoch, and at an epoch's end."""
    keras = tf.keras

    class Stop(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def __init__(self, hook: str) -> None:
            super().__init__()
            self.hook = hook
            self.steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.steps += 1
            self.decide("batch", self.steps == 6)

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.decide("epoch", epoch == 1)

        def decide(self, hook: str, is_time: bool) -> None:
            if hook == self.hook and is_time and not ctx.is_chief:
                self.model.stop_training = True

    steps, weights = {}, {}
    for hook in ("batch", "epoch"):
        with ctx.strategy.scope():
            model = dense_model(keras, "sgd")
        stop = Stop(hook)
        fit(ctx, model, "plain", [stop])
        steps[hook] = stop.steps
        weights[f"weights {hook}"] = flat(model)
    with ctx.strategy.scope():
        model = dense_model(keras, "sgd")
    x, y = examples(64)
    x[-1] = np.nan  # of the last worker's slice
    spoilt = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
    history = model.fit(spoilt, epochs=3, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])
    return {**weights, "steps": steps, "nan epochs": len(history.epoch), "notes": notes(ctx)}


def rates_differ(ctx: Any) -> dict[str, Any]:
    class Local(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if not ctx.is_chief:
                self.model.optimizer.learning_rate = 0.01

    model = made(ctx, "sgd")
    return {"told": refusal(fit, ctx, model, "ctx", [Local()])}


def backup_beside_raydist(ctx: Any, *, folder: str) -> dict[str, Any]:
    model = made(ctx, "sgd")
    fit(ctx, model, "ctx", [tf.keras.callbacks.BackupAndRestore(folder)])
    return {"weights": flat(model), "notes": notes(ctx), "wrote": Path(folder).exists()}


def notes(ctx: Any) -> list[str]:
    return notes_of(ctx)


def read_logs(ctx: Any) -> dict[str, bool]:
    """Returns of which callbacks it is said that they look at the logs of training batches."""
    from raydist.training.stepping.callbacks import reads_batch_logs

    callbacks = tf.keras.callbacks
    hook = "on_train_batch_end" if hasattr(tf.keras, "ops") else "on_batch_end"

    class Board(callbacks.TensorBoard):  # type: ignore[misc, name-defined]
        """Has a hook of its own for epochs alone."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...

    class Counts(callbacks.Callback):  # type: ignore[misc, name-defined]
        num_batches = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.num_batches += 1

    class Stops(Counts):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = logs["loss"] < 0.1

    given = {
        "best of batches": callbacks.ModelCheckpoint("x.weights.h5", save_freq=3, save_best_only=True),
        "best of epochs": callbacks.ModelCheckpoint("x.weights.h5", save_best_only=True),
        "all batches": callbacks.ModelCheckpoint("x.weights.h5", save_freq=3),
        "nan": callbacks.TerminateOnNaN(),
        "board": Board("board", update_freq="batch"),
        "counts": Counts(),
        "stops": Stops(),
        "lambda, reads": callbacks.LambdaCallback(**{hook: lambda batch, logs: print(batch, logs)}),
        "lambda": callbacks.LambdaCallback(**{hook: lambda batch, logs: print(batch)}),
        "method": callbacks.LambdaCallback(**{hook: Stops().on_train_batch_end}),
    }
    return {
        name: reads_batch_logs([one], callbacks.Callback, tf.distribute.get_strategy())
        for name, one in given.items()
    }


def autologged(ctx: Any, *, tracking_uri: str) -> dict[str, Any]:
    """Trains with MLflow's autologging, as its guide has it, and returns the run that it made."""
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # as a database needs more packages
    import mlflow

    mlflow.set_tracking_uri(f"{tracking_uri}/{ctx.task.index}")  # each makes one when it looks for its run
    mlflow.tensorflow.autolog(log_models=False)
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((6,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = tf.ones([16, 6])
    model.fit(tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(8), verbose=0)
    run = mlflow.last_active_run()
    return {"run": None if run is None else run.info.run_id}
