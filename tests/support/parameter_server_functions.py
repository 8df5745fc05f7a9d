"""Train functions for tests of ParameterServer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.coordinator import cluster_coordinator, values
from tensorflow.python.eager import context

from raydist import tf_private
from raydist.errors import MistakeError
from raydist.outcome.status import WorkerAddresses
from raydist.training.checkpointing import variables
from raydist.training.parameter_server import closure_sizes, train_input
from raydist.training.parameter_server.train_input import IteratorFeed
from tests.support.in_tasks import refusal
from tests.support.inside import notes_of, progress_of, run_of
from tests.support.metric_functions import Counted

keras = tf.keras

NUM_IDS = 40


def rated(count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns pairs of ids `[count, 2]` and what the first one thinks of the second `[count]`."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, NUM_IDS, size=(count, 2))
    taste = np.random.default_rng(99).normal(size=(NUM_IDS, 2))
    return ids, (taste[ids[:, 0]] * taste[ids[:, 1]]).sum(axis=1).astype("float32")


def embedding_model(keras: Any, *, learning_rate: float = 0.02) -> Any:
    ids = keras.layers.Input((2,), dtype="int64")
    first = keras.layers.Embedding(NUM_IDS, 4, name="table")(ids)
    hidden = keras.layers.Dense(16, activation="relu")(keras.layers.Flatten()(first))
    model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dropout(0.01)(hidden)))
    model.compile(
        optimizer=keras.optimizers.Adam(learning_rate),
        loss="mse",
        metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
    )
    return model


def fit(
    ctx: Any, *, epochs: int = 2, steps_per_epoch: int = 60, batch_size: int = 16, fail_at: int = -1
) -> dict[str, Any]:
    """Trains and validates; returns what has to add up. Raises after `fail_at` steps."""
    keras.utils.set_random_seed(5)
    with ctx.strategy.scope():
        model = embedding_model(keras)
    x, y = rated(960)
    x_val, y_val = rated(333, seed=1)  # neither workers nor batches divide it
    watch = _watch(keras, steps_per_epoch, fail_at)

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(960, seed=3).batch(batch_size)

    def validation() -> Any:
        return tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(50)

    history = ctx.fit(
        model,
        data,
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        validation_data=validation,
        callbacks=[watch],
    )
    predicted = model(tf.constant(x_val)).numpy()[:, 0]
    status = progress_of(ctx).status()
    return {
        "history": history.history,
        "iterations": int(model.optimizer.iterations.numpy()),
        "val_rmse_by_hand": float(np.sqrt(((predicted - y_val) ** 2).mean())),
        "step": status.step,
        "steps_repeated": status.steps_repeated,
        "epochs": watch.epochs,
        "batches": watch.batches,
    }


def cut_epoch(ctx: Any) -> dict[str, Any]:
    """Trains a model that does not move; the first attempt ends in the second of three epochs."""
    x = np.arange(320, dtype="float32")[:, None] / 320

    class End(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if ctx.attempt == 0 and ctx.step >= 70:
                run_of(ctx).checkpoints.finish()  # that of step 50 at least
                raise OSError("as asked")

    with ctx.strategy.scope():
        output = keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([keras.layers.Input((1,)), output])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae", Counted("count")])

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, x + 1)).batch(8)

    history = ctx.fit(model, data, epochs=3, steps_per_epoch=40, callbacks=[End()], verbose=0).history
    expected = {"loss": np.square(x + 1).mean(), "mae": (x + 1).mean(), "count": 320}
    return {"history": history, "expected": {name: float(one) for name, one in expected.items()}}


def _watch(keras: Any, steps_per_epoch: int, fail_at: int) -> Any:
    class Watch(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.epochs: list[int] = []
            self.batches: list[int] = []

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.epochs.append(epoch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            assert logs["loss"] >= 0
            self.batches.append(batch)
            if 0 <= fail_at <= len(self.epochs) * steps_per_epoch + batch:
                raise RuntimeError("as asked")

    return Watch()


def weights(ctx: Any, *, epochs: int) -> dict[str, Any]:
    """Trains for `epochs`; returns the weights and Adam's slots, whole, by their place in the checkpoint."""
    with ctx.strategy.scope():
        model = embedding_model(tf.keras)
    x, y = rated(960)
    ctx.fit(
        model, lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(16), epochs=epochs, steps_per_epoch=10
    )
    groups = {"model": model, "optimizer": model.optimizer}
    snapshot = variables.Snapshots().take(
        {name: variables.variables_of(name, one) for name, one in groups.items()}, is_chief=True
    )
    files = snapshot.files()
    return {
        "index": files["variables.json"].decode(),
        "npz": np.frombuffer(files["variables.npz"], np.uint8),
        "step": progress_of(ctx).status().step,
        "num_parts": len(variables.variables_of("model", model)),
    }


def loop(ctx: Any, *, num_steps: int, steps_per_call: int) -> dict[str, Any]:
    """A custom loop by ctx.train_steps, and one by the bare coordinator."""
    with ctx.strategy.scope():
        weight = tf.Variable([0.0, 0.0], name="weight")
        calls = tf.Variable(0, dtype=tf.int64, name="calls")
        optimizer = tf.keras.optimizers.SGD(0.05)
    restored = ctx.restore(weight=weight, calls=calls)

    def step(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, weight) - y) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        calls.assign_add(1)
        if tf.shape(x)[0] > 1:  # AutoGraph converts a step function
            rows = tf.shape(x)[0]
        else:
            rows = 1
        return {"loss": loss, "rows": rows}

    def sharded(context: Any) -> Any:
        assert context.num_input_pipelines == ctx.num_workers
        x = np.random.default_rng(context.input_pipeline_id).normal(size=(64, 2)).astype("float32")
        return tf.data.Dataset.from_tensor_slices((x, x @ np.array([1.0, -2.0], "float32"))).batch(8)

    last = ctx.train_steps(step, sharded, num_steps=num_steps, steps_per_call=steps_per_call)

    @tf.function
    def bare(iterator: Any) -> Any:
        return ctx.strategy.run(step, args=(next(iterator),))["loss"]

    def endless() -> Any:
        return sharded(tf.distribute.InputContext(ctx.num_workers, 0, 1)).repeat()

    iterator = iter(ctx.coordinator.create_per_worker_dataset(endless))
    losses = [ctx.coordinator.schedule(bare, args=(iterator,)) for _ in range(3)]
    ctx.coordinator.join()

    def thousand(context: Any) -> Any:
        rows = tf.data.Dataset.from_tensor_slices((np.ones((1000, 1)), np.zeros(1000)))
        rows = rows.shard(context.num_input_pipelines, context.input_pipeline_id)
        return rows.batch(context.get_per_replica_batch_size(63))  # which 2 does not divide

    with ctx.strategy.scope():
        unbuilt = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
        unbuilt.compile(loss="mse")
    return {
        "batches": train_input.num_batches(run_of(ctx), thousand),
        "evaluated": ctx.evaluate(unbuilt, thousand)["loss"],
        "last": dict(last),
        "weight": weight.numpy(),
        "calls": int(calls.numpy()),
        "step": progress_of(ctx).status().step,
        "steps_repeated": progress_of(ctx).status().steps_repeated,
        "bare": [float(value) for value in ctx.coordinator.fetch(losses)],
        "restored": restored,
    }


def mistakes(ctx: Any) -> dict[str, Any]:
    """Makes each mistake that a user can; returns what it is answered with."""
    with ctx.strategy.scope():
        model = embedding_model(keras)
        uncompiled = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
        averaging = embedding_model(keras)
        averaging.compile(keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2), "mse")
    outside = embedding_model(keras)
    variable = tf.Variable(1.0, name="outside")
    x, y = rated(64)

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

    def fit(of: Any = model, given: Any = data, **arguments: Any) -> Any:
        return lambda: ctx.fit(of, given, **{"epochs": 1, "steps_per_epoch": 2, **arguments})

    class AtTestBatches(keras.callbacks.Callback):  # type: ignore[misc]
        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    made_outside = data()
    of_python = tf.data.Dataset.from_generator(lambda: iter([1.0]), output_signature=tf.TensorSpec([]))
    nothing = mock.Mock(return_value=tf.constant(b""))
    too_large = mock.patch.object(values, "serialize_dataset_to_graph", nothing)
    attempts = {
        "no data": fit(given=[1, 2]),
        "dataset of Python": fit(given=of_python),
        "dataset of 2 GB": too_large(fit(given=data())),
        "dataset made outside": fit(given=lambda: made_outside),
        "no steps_per_epoch": fit(given=lambda: data().repeat(), steps_per_epoch=None),
        "no dataset": fit(given=lambda: [1, 2]),
        "outside the scope": fit(outside),
        "not compiled": fit(uncompiled),
        "averages that are written": fit(averaging),
        "endless validation": fit(validation_data=lambda: data().repeat()),
        "validation dataset": fit(validation_data=of_python),
        "hook at test batches": fit(validation_data=data, callbacks=[AtTestBatches()]),
        "variable outside": lambda: ctx.train_steps(
            lambda batch: {"loss": variable * tf.reduce_mean(batch[1])}, data, num_steps=2
        ),
        "no scalars": lambda: ctx.train_steps(lambda batch: batch[1], data, num_steps=2),
    }
    return {name: refusal(attempt) for name, attempt in attempts.items()}


def failing_step(ctx: Any) -> dict[str, Any]:
    """A step that raises in the worker; returns what the chief got."""

    def step(batch: Any) -> dict[str, Any]:
        return {"loss": tf.debugging.check_numerics(batch / 0.0, "the user's own check")}

    def train(count: int) -> None:
        ctx.train_steps(step, lambda: tf.data.Dataset.from_tensors(1.0).take(count), num_steps=1000)

    return {"empty": refusal(train, 0), "error": refusal(train, 1)}


def refused_where_sharded(ctx: Any) -> dict[str, Any]:
    """Trains a model of Keras 3 where there is a partitioner, and asks for updates of several batches."""
    import keras

    given = {"epochs": 1, "steps_per_epoch": 1}
    with ctx.strategy.scope():
        of_keras_3, model = embedding_model(keras), embedding_model(tf.keras)
    return {
        "keras 3": refusal(ctx.fit, of_keras_3, lambda: None, **given),
        "accumulate": refusal(ctx.fit, model, lambda: None, **given, accumulate=2),
    }


def batch_hooks(ctx: Any) -> dict[str, Any]:
    """Trains as callbacks want it at each batch: by plain Keras in the chief, and on a worker."""
    x = np.random.default_rng(0).normal(size=(60, 2)).astype("float32")
    y = x @ np.array([[1.0], [-2.0]], "float32")

    class Model(keras.Sequential):  # type: ignore[misc]
        def train_step(self, batch: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                logs = self.test_step(batch)
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(logs["own"], variables), variables, strict=True))
            return logs  # type: ignore[no-any-return]

        def test_step(self, batch: Any) -> dict[str, Any]:
            return {"own": tf.reduce_mean((self(batch[0], training=True) - batch[1]) ** 2)}

    class WarmUp(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Any] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.calls.append(f"begin {batch}")
            self.model.optimizer.learning_rate = 0.001 * (batch + 1)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.calls.append(f"end {batch}")
            self.own = float(logs["own"])
            self.model.stop_training = self.epoch == 1 and batch == 7

        def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
            """Nothing."""

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    def train(fit: Any, given: Any, validation_data: Any) -> dict[str, Any]:
        model = Model([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1))
        printed: list[int] = []
        seen = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: printed.append(batch))
        warm_up = WarmUp()
        fit = fit or model.fit
        arguments = (model, given) if fit == ctx.fit else (given,)
        history = fit(
            *arguments,
            epochs=3,
            steps_per_epoch=10,
            validation_data=validation_data,
            callbacks=[warm_up, seen],
            verbose=0,
        ).history
        weights = [float(one) for one in model.layers[-1].kernel.numpy()[:, 0]]
        calls = {"calls": warm_up.calls, "printed": printed}
        return {**calls, "own": warm_up.own, "history": history, "weights": weights}

    expected = train(None, data().repeat(), data())
    before = ctx.step
    with ctx.strategy.scope():
        found = train(ctx.fit, data, data)
    return {"expected": expected, "found": found, "steps": ctx.step - before}


def ends_of_data(ctx: Any) -> dict[str, Any]:
    """Trains on data in each form without steps_per_epoch; returns steps and weights, and plain Keras's."""
    x = np.random.default_rng(0).normal(size=(60, 2)).astype("float32")
    y = x @ np.array([[1.0], [-2.0]], "float32")

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)

    def of_unknown_length() -> Any:
        return data().filter(lambda x, y: tf.size(x) > 0)

    def of_context(context: Any) -> Any:
        return of_unknown_length().shard(context.num_input_pipelines, context.input_pipeline_id)

    def trained(fit: Any) -> list[float]:
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        fit(model)
        return [int(model.optimizer.iterations.numpy()), *map(float, model.layers[-1].kernel.numpy()[:, 0])]

    expected = trained(lambda model: model.fit(data(), epochs=2, verbose=0))
    given = {
        "dataset": data(),
        "dataset of unknown length": of_unknown_length(),
        "function": data,
        "function of unknown length": of_unknown_length,
        "function of a context": of_context,
    }
    with ctx.strategy.scope():
        found = {
            name: trained(lambda model, one=one: ctx.fit(model, one, epochs=2)) for name, one in given.items()
        }
        found["model.fit"] = trained(lambda model: model.fit(of_unknown_length(), epochs=2, verbose=0))
        found["model.fit of arrays"] = trained(
            lambda model: model.fit(x, y, batch_size=8, shuffle=False, epochs=2, callbacks=ctx.callbacks())
        )
    return {"expected": expected, "found": found, "notes": notes_of(ctx)}


def shards_of_one_name(ctx: Any) -> dict[str, Any]:
    """Two towers with layers of one name; returns the shapes of the whole variables."""
    layers = tf.keras.layers
    with ctx.strategy.scope():
        towers = [
            tf.keras.Sequential([tf.keras.layers.Input((1,)), layers.Embedding(rows, width, name="emb")])
            for rows, width in ((6, 3), (10, 2))
        ]
    parts = variables.variables_of("model", towers)
    whole = variables._whole_variables({"model": parts})
    return {"names": [part.name for part in parts], "shapes": [list(one.shape) for one in whole.values()]}


def returned_losses(ctx: Any) -> dict[str, Any]:
    """Trains without moving a model whose own steps return `loss`, and evaluates it."""
    from tests.programs.returned_losses import LossAlone, Ratings

    rng = np.random.default_rng(7)
    x = rng.normal(size=(45, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(16)

    result = {}
    for make in (Ratings, LossAlone):
        tf.keras.utils.set_random_seed(7)
        with ctx.strategy.scope():
            model = make()
            model.compile(tf.keras.optimizers.SGD(0.0))
        history = ctx.fit(
            model, lambda: data().take(2).repeat(), epochs=1, steps_per_epoch=4, validation_data=data
        )
        squares = np.square(y - model(tf.constant(x)).numpy())
        # Of 3 steps on 2 workers that read the same data the first one takes 2.
        of_workers = squares if ctx.num_workers == 1 else np.concatenate([squares[:32], squares[:16]])
        result[make.__name__] = {
            # Those of the last batch, as Keras has it.
            "expected": {"loss": float(squares[16:32].mean()), "val_loss": float(squares[32:].mean())},
            "error": float(squares.mean() ** 0.5),
            "history": {name: value for name, [value] in history.history.items()},
            "evaluated": dict(ctx.evaluate(model, data)),
            "error of workers": float(of_workers.mean() ** 0.5),
            "evaluated by workers": dict(ctx.evaluate(model, lambda context: data(), steps=3)),
        }
    return result


def keras_calls(ctx: Any) -> dict[str, Any]:
    """Makes Keras's own calls on 333 examples; returns what each gives, or is answered with."""
    keras.utils.set_random_seed(5)
    with ctx.strategy.scope():
        model = embedding_model(keras)
    x, y = rated(333)

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(50)  # 7 batches

    def loss_by_hand() -> float:
        return float(np.square(model(tf.constant(x)).numpy()[:, 0] - y).mean())

    def evaluated(*args: Any, **options: Any) -> list[float]:
        logs = model.evaluate(*args, verbose=0, return_dict=True, **options)
        return [logs["loss"], loss_by_hand()]

    def predicted(*args: Any, **options: Any) -> list[float]:
        outputs = model.predict(*args, verbose=0, **options)
        return [float(np.abs(outputs - model(tf.constant(x)).numpy()).max()), 0.0]

    def fit(*args: Any, **options: Any) -> list[float]:
        given = {"epochs": 2, "steps_per_epoch": 7, "verbose": 0, **options}
        logs = model.fit(*args, **given).history
        return [logs["val_loss"][-1], loss_by_hand()]

    def fit_with_callbacks() -> list[float]:
        class Looks(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
                self.model.evaluate(data(), verbose=0)
                self.model.predict(data(), verbose=0)

        return fit(data().repeat(), validation_data=data(), callbacks=[Looks()])

    def fit_of_weights(*args: Any, **options: Any) -> list[float]:
        """Trains on examples that weigh nothing."""
        with ctx.strategy.scope():
            fresh = embedding_model(keras)
        before = [np.array(weight) for weight in fresh.get_weights()]
        fresh.fit(*args, steps_per_epoch=7, verbose=0, **options)
        moved = [np.abs(new - old).max() for new, old in zip(fresh.get_weights(), before, strict=True)]
        return [float(max(moved)), 0.0]

    weighted = tf.data.Dataset.from_tensor_slices((x, y, np.zeros(333, "float32"))).batch(50).repeat()
    of_classes = tf.data.Dataset.from_tensor_slices((x, np.arange(333) % 2)).batch(50).repeat()

    def tested() -> list[float]:
        return [model.test_on_batch(x, y, return_dict=True)["loss"], loss_by_hand()]

    def exactly(data: Any) -> list[float]:
        model.compile("sgd", "mse", ["mae"], pss_evaluation_shards=2)  # tf_keras's own way, on the workers
        return fit(data.repeat(), validation_data=data)

    def in_scope(call: Any) -> list[float]:
        with ctx.strategy.scope():
            return call(data())  # type: ignore[no-any-return]

    calls = {
        "evaluate arrays": lambda: evaluated(x, y, batch_size=50),
        "evaluate": lambda: evaluated(data()),
        "evaluate steps": lambda: evaluated(data().repeat(), steps=7),
        "evaluate in scope": lambda: in_scope(evaluated),
        "test_on_batch": tested,
        "predict": lambda: predicted(data()),
        "predict in scope": lambda: in_scope(predicted),
        "fit": lambda: fit(data().repeat(), validation_data=data()),
        "fit arrays": lambda: fit(x, y, validation_data=(x, y)),
        "fit with callbacks": fit_with_callbacks,
        "fit of weights": lambda: fit_of_weights(weighted),
        "evaluate after fit": lambda: evaluated(data()),
        "sample_weight": lambda: fit_of_weights(x, y, sample_weight=np.zeros(333)),
        "class_weight": lambda: fit_of_weights(of_classes, class_weight={0: 0.0, 1: 0.0}),
        "no steps": lambda: fit(x, y, validation_data=(x, y), steps_per_epoch=None),
        "too short": lambda: fit(data(), validation_data=data(), steps_per_epoch=8),
        "too short, as it turns out": lambda: fit(
            data().filter(lambda x, y: tf.size(x) > 0), validation_data=data(), steps_per_epoch=15
        ),
        "train_on_batch": lambda: model.train_on_batch(x, y)[:1] * 2,
        "distributed": lambda: evaluated(ctx.strategy.experimental_distribute_dataset(data()), steps=7),
        "distributed validation": lambda: fit(
            data().repeat(), validation_data=ctx.strategy.experimental_distribute_dataset(data())
        ),
        "fit after it": lambda: fit(data().repeat(), validation_data=data()),
    }
    if hasattr(keras.utils, "experimental"):
        creator = keras.utils.experimental.DatasetCreator(lambda context: data().repeat())
        calls["creator"] = lambda: evaluated(creator, steps=7)
        calls["fit creator"] = lambda: fit(creator, validation_data=creator, validation_steps=7)
        calls["exact"] = lambda: exactly(data())
    answers: dict[str, Any] = {}
    for name, call in calls.items():
        try:
            answers[name] = call()
        except MistakeError as error:
            answers[name] = str(error)
    return answers


def come_and_go(ctx: Any, *, phases: list[tuple[int, str]], begun: str) -> dict[str, Any]:
    """Trains once for each phase, as soon as so many workers are there; returns what each has counted.

    Args:
      phases: Workers to wait for, and the kind of the data.
      begun: What the files' names begin with that tell of each phase which closure has been done first.
    """
    import raydist.data

    def eight_each(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return tf.data.Dataset.range(8)

    closure_sizes._REPORT_INTERVAL_S = 0.0
    num_rows, batch_size, found = 2400, 4, []
    with ctx.strategy.scope():
        seen = tf.Variable(tf.zeros([num_rows], tf.int64), trainable=False)

    def step(batch: Any) -> dict[str, Any]:
        seen.scatter_add(tf.IndexedSlices(tf.ones_like(batch), batch))
        return {"rows": tf.size(batch)}

    progress = progress_of(ctx)
    rows = np.arange(num_rows)
    kinds: dict[str, Any] = {
        "batches": raydist.data.from_arrays(rows).batches(global_batch_size=batch_size),
        "function": lambda: tf.data.Dataset.from_tensor_slices(rows).batch(batch_size),
    }
    for number, (num_workers, kind) in enumerate(phases):
        deadline = time.monotonic() + 120
        while (
            len(tf_private.members_of(ctx.coordinator)) != num_workers
            or tf_private.num_present(ctx.coordinator) < num_workers
        ):
            assert time.monotonic() < deadline, f"phase {number} has not the workers"
            time.sleep(0.02)
        num_batches = train_input.num_batches(run_of(ctx), eight_each)
        Path(f"{begun}{number}").touch()
        seen.assign(tf.zeros_like(seen))
        num_steps = num_rows // batch_size * (1 if kind == "batches" else 5)
        repeated = progress.status().steps_repeated
        ctx.train_steps(step, kinds[kind], num_steps=num_steps, steps_per_call=5)
        status = progress.status()
        found.append(
            {
                "seen": seen.numpy().tolist(),
                "repeated": status.steps_repeated - repeated,
                "steps": [one.steps for one in status.worker_paces],
                "wanted": num_steps,
                "batches": num_batches,
            }
        )
    return {"phases": found}


def worker_slots(ctx: Any) -> dict[str, Any]:
    """What a coordinator's slots do about a lost SYN, updates that fail and a time without workers."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = {slot: f"127.0.0.1:{one.getsockname()[1]}" for slot, one in enumerate(sockets)}
    server_def = tf.train.ServerDef()
    server_def.cluster.job.add(name="worker").tasks.update(addresses)
    cluster = SimpleNamespace(
        _num_workers=2,
        workers=[mock.Mock(), mock.Mock()],
        closure_queue=SimpleNamespace(_cancellation_mgr=SimpleNamespace(is_cancelled=False)),
        _record_and_ignore_transient_ps_failure=lambda error: False,
        _record_and_ignore_transient_timeouts=lambda error: False,
    )
    updates: list[list[int]] = []
    errors: list[Exception] = []
    lost_syns: list[int] = []
    notes: list[str] = []
    connect = socket.create_connection

    def update_server_def(new: Any) -> None:
        updates.append(sorted(new.cluster.job[0].tasks))
        if errors:
            raise errors.pop()

    def create_connection(address: tuple[str, int], **options: Any) -> socket.socket:
        if address[1] in lost_syns:
            lost_syns.remove(address[1])
            raise TimeoutError
        return connect(address, **options)

    def lose_worker_1() -> None:
        """Returns once it is back."""
        name = "/job:worker/replica:0/task:1"
        with handler.wait_on_failure(worker_device_name=name):
            raise tf.errors.UnavailableError(None, None, f"{name} died")

    found: dict[str, Any] = {}
    with (
        mock.patch.object(context.context(), "update_server_def", update_server_def),
        mock.patch.object(socket, "create_connection", create_connection),
    ):
        slots = tf_private.WorkerSlots(2, cut=lambda address: None, note=notes.append)
        slots.keep()
        handler = cluster_coordinator.WorkerPreemptionHandler(server_def, cluster)
        slots.serve(handler)
        lost_syns.append(sockets[0].getsockname()[1])
        lose_worker_1()
        found["after a lost SYN"] = updates[:]
        errors += [tf.errors.InternalError(None, None, "odd") for _ in range(4)]
        lose_worker_1()
        found["after errors"], found["notes"] = updates[1:], notes
        coordinator = SimpleNamespace(_cluster=SimpleNamespace(failure_handler=handler))
        made: list[tuple[int, ...]] = []

        def make(members: Sequence[int], done: int) -> tuple[Any, Any]:
            made.append(tuple(members))
            return mock.MagicMock(), None

        feed = IteratorFeed(coordinator, make)
        slots.take({})
        found["outdated without workers"] = feed.is_outdated
        messages: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=slots.follow, args=[messages], daemon=True).start()
        messages.put(SimpleNamespace(number=0, addresses=None))  # cannot be taken in
        back = WorkerAddresses(number=1, addresses={1: addresses[1]})
        threading.Timer(0.3, messages.put, [back]).start()
        feed.renew(8)
        found["made"], found["outdated"] = made, feed.is_outdated
        handler.stop()
    return found
