"""Train functions that tests run in real TensorFlow tasks."""

from __future__ import annotations

import importlib
import inspect
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from raydist.spec.job import KerasFlavour
from tests.support.in_tasks import Crashed, crash, descend, flat, refusal
from tests.support.inside import notes_of, progress_of, run_of
from tests.support.late import LateModule

tf = LateModule("tensorflow")


def in_turn(ctx: Any, *, calls: dict[str, tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Calls `module:function(ctx, **arguments)` of each name; see `processes.run_in_turn`."""
    results = {}
    for name, (target, arguments) in calls.items():
        module, _, function = target.partition(":")
        found = getattr(importlib.import_module(module), function)(ctx, **arguments)
        results.update({f"{name}/{key}": value for key, value in found.items()})
    return results


def examples(count: int, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns features `[count, 6]` and labels `[count]` in 0..2 that depend on them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(axis=1).astype("int64")
    return x, y


def dense_model(
    keras: Any, optimizer: str, *, steps_per_execution: int = 1, metrics: tuple[str, ...] = ()
) -> Any:
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


def made(ctx: Any, optimizer: str, *, is_built: bool = False, **options: Any) -> Any:
    """Returns `dense_model` under the run's strategy, also with the optimizer's variables."""
    with ctx.strategy.scope():
        model = dense_model(tf.keras, optimizer, **options)
        if is_built:
            model.optimizer.build(model.trainable_variables)
    return model


def weights_of_every_way(ctx: Any, *, batch_size: int, count: int, epochs: int) -> dict[str, Any]:
    """Trains the same model in each way and returns the final weights by way, flattened."""
    return {
        f"{name}-{optimizer}-{steps}": way(ctx, optimizer, steps, batch_size, count, epochs)
        for name, way in (("fit", _fit), ("train_steps", _train_steps))
        for optimizer in ("sgd", "adam")
        for steps in (1, 10)
    }


def _dataset(batch_size: int, count: int) -> Any:
    return tf.data.Dataset.from_tensor_slices(examples(count)).shuffle(count, seed=3).batch(batch_size)


def _fit(ctx: Any, optimizer: str, steps: int, batch_size: int, count: int, epochs: int) -> np.ndarray:
    model = made(ctx, optimizer, steps_per_execution=steps, metrics=("accuracy",))
    model.fit(_dataset(batch_size, count), epochs=epochs, verbose=0)
    return flat(model)


def _train_steps(
    ctx: Any, optimizer: str, steps: int, batch_size: int, count: int, epochs: int
) -> np.ndarray:
    model = made(ctx, optimizer, is_built=True)

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
    return flat(model)


def raises_where_metrics_cannot_be_stored(ctx: Any) -> None:
    ctx.report({"loss": 0.5}, step=1)
    Path(ctx.storage).mkdir(parents=True)
    Path(ctx.storage, "metrics").write_text("a file in the way of the folder")
    raise ValueError("the user's own mistake")


def batchnorm_model(keras: Any, *, steps_per_execution: int = 1) -> Any:
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.layers.Input((6,)),
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(0.05),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return model


def users_own_fit(ctx: Any, *, count: int = 33, batch_size: int = 32) -> dict[str, Any]:
    """Plain fit, evaluate and predict on uneven data, with BatchNormalization, several steps per call."""
    result: dict[str, Any] = {}
    x, y = examples(count)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size)
    for steps in (1, 4):
        with ctx.strategy.scope():
            model = batchnorm_model(tf.keras, steps_per_execution=steps)
        history = model.fit(data, epochs=2, verbose=0, validation_data=data)
        assert set(history.history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        for name, values in history.history.items():
            result[f"{name}-{steps}"] = np.array(values)
        result[f"evaluate-{steps}"] = np.array(model.evaluate(data, verbose=0))
        result[f"predict-{steps}"] = model.predict(data, verbose=0)
        result[f"statistics-{steps}"] = np.concatenate(
            [weight.ravel() for weight in model.layers[1].get_weights()[2:]]
        )
        result[f"weights-{steps}"] = flat(model)
    model = made(ctx, "sgd", metrics=("accuracy",))
    history = model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    result["loss-of-arrays"] = np.array(history.history["loss"])
    result["predict-of-arrays"] = model.predict(x, batch_size=10, verbose=0)
    return result


def batch_logs(ctx: Any) -> dict[str, Any]:
    """Returns the losses that on_train_batch_end saw, and that of the epoch."""
    seen: list[float] = []

    class Watch(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(logs["loss"]))

    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(32)
    model = made(ctx, "sgd")
    history = model.fit(data, verbose=0, callbacks=[Watch()])
    return {"batches": seen, "epoch": history.history["loss"][0]}


def logs_of_eager_steps(ctx: Any) -> dict[str, Any]:
    """Returns the precision after each batch; the second of two workers finds nothing positive."""
    keras = tf.keras

    class OwnStep(keras.Model):  # type: ignore[misc]
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            y_pred = self(x, training=True)
            if keras.Model.__module__.startswith("tf_keras"):
                self.compiled_metrics.update_state(y, y_pred)  # whose metrics are made in the first step
            else:
                for metric in self.metrics:
                    if metric.name != "loss":
                        metric.update_state(y, y_pred)
            return {metric.name: metric.result() for metric in self.metrics}

    seen: list[float] = []

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(float(logs["precision"]))

    rows = np.tile(np.array([[1.0], [-1.0]], "float32"), (4, 1))
    with ctx.strategy.scope():
        inputs = keras.Input((1,))
        outputs = keras.layers.Dense(1, "sigmoid", kernel_initializer="ones")(inputs)
        model = OwnStep(inputs, outputs)
        metrics = [keras.metrics.Precision(name="precision")]
        model.compile("sgd", "mse", metrics=metrics, run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices((rows, np.ones_like(rows))).batch(2)
    model.fit(data, verbose=0, callbacks=[Watch()])
    return {"precision": seen}


def clipped(ctx: Any, *, clip: str) -> dict[str, Any]:
    data = tf.data.Dataset.from_tensor_slices(examples(96)).batch(32)
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "sgd")
        model.compile(
            optimizer=tf.keras.optimizers.SGD(0.5, **{clip: 0.05}),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    model.fit(data, epochs=3, verbose=0)
    return {"weights": flat(model)}


def refused(ctx: Any, *, option: str) -> dict[str, Any]:
    options = {
        "gradient_accumulation_steps": {"gradient_accumulation_steps": 2},
        "ema_overwrite_frequency": {"use_ema": True, "ema_overwrite_frequency": 2},
    }
    keras = tf.keras
    with ctx.strategy.scope():
        model = dense_model(keras, "sgd")
        if option == "stateful":  # of as many rows as a replica has
            layers = [keras.layers.Reshape((6, 1)), keras.layers.GRU(2, stateful=True), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input(batch_shape=(2, 6)), *layers])
        model.compile(optimizer=keras.optimizers.SGD(0.1, **options.get(option, {})), loss="mse")
    return {"error": refusal(model.fit, tf.data.Dataset.from_tensor_slices(examples(8)).batch(4), verbose=0)}


def error_of_fit(ctx: Any, *, steps: int) -> dict[str, Any]:
    model = made(ctx, "sgd", steps_per_execution=steps)
    data = tf.data.Dataset.from_tensor_slices(examples(64)).batch(16)
    return {"error": refusal(model.fit, data, verbose=0)}


def changed_sources(ctx: Any, *, module: str) -> dict[str, Any]:
    found = importlib.import_module(f"raydist.training.keras_patches.{module}.patches").replacements()
    return {"changed": [str(one) for one in found if not (one.fits and one.is_known)], "count": len(found)}


def patch_of_changed_source(ctx: Any) -> dict[str, Any]:
    from raydist.training.keras_patches.keras3 import patches, trainer

    trainer.TensorFlowTrainer.fit = lambda self: None
    try:
        patches.patch(sync_batchnorm=False)
    except Exception as error:
        return {"error": str(error)}
    return {"error": ""}


def fit_through_context(ctx: Any, *, epochs: int, stop_after: int | None = None) -> dict[str, Any]:
    """ctx.fit on shuffled data; `stop_after` raises after that many steps, as a crash would."""

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices(examples(200)).shuffle(200, seed=5).batch(32)

    model = made(ctx, "adam", metrics=("accuracy",))
    crashes = crash(tf.keras, "on_train_batch_begin", stop_after)
    try:
        history = ctx.fit(model, data, epochs=epochs, validation_data=data, callbacks=[crashes])
    except Crashed:
        return {"status": _status(ctx)}
    return {
        "weights": flat(model),
        "status": _status(ctx),
        "loss": np.array(history.history["loss"]),
        "accuracy": np.array(history.history["accuracy"]),
        "epochs": history.epoch,
    }


def _status(ctx: Any) -> dict[str, Any]:
    status = progress_of(ctx).status()
    return {
        "step": status.step,
        "restored_step": status.restored_step,
        "epoch": status.epoch,
        "metrics": dict(status.metrics),
        "checkpoint": status.checkpoint,
        "notes": list(status.notes),
        "trainings": [[one.kind, one.number, one.step] for one in status.trainings],
        "num_steps": status.num_steps,
    }


def bare_step(
    model: Any,
    *,
    global_batch_size: int,
    prepared: Callable[[Any], Any] = lambda x: x,
    shown: Callable[[Any], object] = lambda loss: None,
) -> Callable[[Any], dict[str, Any]]:
    """Returns a step for `ctx.train_steps` as TensorFlow's guide of custom loops writes it."""

    def step_fn(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            logits = model(prepared(x), training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        shown(loss)
        return {"loss": tf.reduce_mean(losses)}

    return step_fn


def train_steps_through_context(ctx: Any, *, stop_after: int | None = None) -> dict[str, Any]:
    """Two calls of train_steps, 8 and 12 steps; `stop_after` raises once that many steps are done."""
    model = made(ctx, "adam", is_built=True)
    ctx.restore(model=model, optimizer=model.optimizer)

    step_fn = bare_step(model, global_batch_size=32)
    data = tf.data.Dataset.from_tensor_slices(examples(96)).batch(32)
    ctx.train_steps(step_fn, data, num_steps=8, steps_per_call=3)
    _crash_after(ctx, stop_after)
    try:
        ctx.train_steps(step_fn, data, num_steps=12, steps_per_call=3)
    except Crashed:
        run_of(ctx).checkpoints.finish()
        return {"status": _status(ctx)}
    return {"weights": flat(model), "status": _status(ctx)}


def _crash_after(ctx: Any, num_steps: int | None) -> None:
    """Has a loop crash once so many steps are done; None: never."""
    watched = progress_of(ctx).completed

    def crash(step: int, **kwargs: Any) -> None:
        watched(step, **kwargs)
        if num_steps is not None and step >= num_steps:
            raise Crashed

    progress_of(ctx).completed = crash


def unbuilt_optimizers(ctx: Any, *, num_steps: int) -> dict[str, Any]:
    """Trains a `tf.Module` and a model by an optimizer each, which their first step builds."""

    class Line(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = tf.Variable([[0.1]] * 6), tf.Variable(0.0)

        def train_step(self, data: Any) -> Any:
            """It is no Keras model for all that."""

    keras = tf.keras
    with ctx.strategy.scope():
        line, model = (
            Line(),
            keras.Sequential([keras.Input((1,)), keras.layers.Dense(4), keras.layers.Dense(1)]),
        )
        weights = [np.linspace(-1, 1, one.size).reshape(one.shape) for one in model.get_weights()]
        model.set_weights(weights)
        first, second = keras.optimizers.Adam(0.05), keras.optimizers.Adam(0.02)
    ctx.restore(line=line, model=model, first=first, second=second)

    def step_fn(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape(persistent=True) as tape:
            found = model(x @ line.weight + line.bias, training=True)
            losses = tf.reduce_sum(tf.square(found - tf.cast(y[:, None], tf.float32)), axis=-1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=32)
        for optimizer, of in ((first, line), (second, model)):
            gradients = tape.gradient(loss, of.trainable_variables)
            optimizer.apply_gradients(zip(gradients, of.trainable_variables, strict=True))
        return {"loss": loss}

    data = tf.data.Dataset.from_tensor_slices(examples(96)).batch(32)
    ctx.train_steps(step_fn, data, num_steps=num_steps)
    trained = [*line.trainable_variables, *model.trainable_variables]
    return {"weights": np.concatenate([np.ravel(one.numpy()) for one in trained])}


def loops_that_save_too_little(ctx: Any) -> dict[str, Any]:
    """Loops after which nothing, the model, and all that the step changes was given to ctx.restore."""
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam")
        model.optimizer.build(model.trainable_variables)
        read_only = tf.Variable(1.0, name="read_only")
        seen = tf.Variable(0.0, name="seen", aggregation=tf.VariableAggregation.MEAN)
    step = bare_step(model, global_batch_size=32)

    def step_fn(batch: Any) -> dict[str, Any]:
        seen.assign_add(1.0)
        return {"loss": step(batch)["loss"] * read_only}

    def make_data() -> Any:
        return tf.data.Dataset.from_tensor_slices(examples(96)).batch(32)

    def notes_after(**trackables: Any) -> list[str]:
        if trackables:
            ctx.restore(**trackables)
        known = notes_of(ctx)
        for _ in range(2):
            ctx.train_steps(step_fn, make_data, num_steps=2, steps_per_call=2)
        return [note for note in notes_of(ctx) if note not in known]

    return {
        "nothing": notes_after(),
        "the model": notes_after(model=model),
        "all but one": notes_after(model=model, optimizer=model.optimizer),
        "all": notes_after(model=model, optimizer=model.optimizer, seen=seen),
    }


def wait(ctx: Any) -> None:
    print("training", flush=True)
    time.sleep(300)


def raise_in_worker_1(ctx: Any) -> None:
    if not ctx.is_chief:
        time.sleep(1)
        raise ValueError("only here")

    @tf.function
    def reduce() -> Any:
        return ctx.strategy.run(
            lambda: tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.ones(()))
        )

    print(reduce())


def second_session(ctx: Any) -> dict[str, Any]:
    from raydist import tf_private

    tf.constant(1)
    return {"error": refusal(tf_private.check_untouched)}


def session_with_other_keras(ctx: Any) -> dict[str, Any]:
    from raydist.training.session import check_keras

    try:
        check_keras(KerasFlavour.LEGACY)
    except Exception as error:
        return {"error": str(error)}
    return {"error": ""}


def callback_of_the_chief_alone(ctx: Any) -> dict[str, Any]:
    """Enough steps to be packed, with a callback that watches batches in one task only."""
    seen: list[int] = []

    class Watch(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

    model = made(ctx, "sgd")
    data = tf.data.Dataset.from_tensor_slices(examples(640)).batch(4, drop_remainder=True)
    model.fit(data, epochs=2, verbose=0, callbacks=[Watch()] if ctx.is_chief else [])
    return {"seen": len(seen), "weights": flat(model)}


def fewer_examples_than_replicas(ctx: Any) -> dict[str, Any]:
    """Five examples in batches of four: fit and train_steps with losses that sum, and a masked mean."""
    keras = tf.keras
    data = tf.data.Dataset.from_tensor_slices(examples(5)).batch(4)
    with ctx.strategy.scope():
        fitted = dense_model(keras, "sgd")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
        fitted.compile(keras.optimizers.SGD(0.05), loss=loss, metrics=["accuracy"])
        stepped = dense_model(keras, "sgd")
        stepped.optimizer.build(stepped.trainable_variables)
        masked = keras.Sequential([keras.Input((3, 1)), keras.layers.Masking(), keras.layers.Dense(1)])
        masked.compile(keras.optimizers.SGD(0.05), "mse")
        shown = keras.metrics.Mean()
    history = fitted.fit(data, epochs=3, verbose=0).history
    values = (np.arange(15).reshape(5, 3, 1) % 4).astype("float32")  # zeros are masked
    masked.fit(tf.data.Dataset.from_tensor_slices((values, 2 * values + 1)).batch(4), epochs=3, verbose=0)

    step_fn = bare_step(stepped, global_batch_size=4, shown=shown.update_state)
    metrics = ctx.train_steps(step_fn, data, num_steps=6, steps_per_call=2)
    return {
        "fit": flat(fitted),
        "accuracy": np.array(history["accuracy"]),
        "masked": flat(masked),
        "train_steps": flat(stepped),
        "loss": np.array(metrics["loss"]),
        "shown": np.array(shown.result()),
    }


def synchronized_batchnorm(ctx: Any) -> dict[str, Any]:
    with ctx.strategy.scope():
        model = batchnorm_model(tf.keras)
    data = tf.data.Dataset.from_tensor_slices(examples(96)).batch(32, drop_remainder=True)
    model.fit(data, epochs=3, verbose=0)
    return {"weights": flat(model)}


def two_fits(ctx: Any, *, crash_in: int | None = None) -> dict[str, Any]:
    """Two phases on one model, with a crash in the second."""
    data = tf.data.Dataset.from_tensor_slices(examples(64)).shuffle(64, seed=1).batch(16)
    model = made(ctx, "adam")
    ctx.fit(model, data, epochs=2)
    try:
        history = ctx.fit(model, data, epochs=3, callbacks=[crash(tf.keras, "on_epoch_begin", crash_in)])
    except Crashed:
        return {"status": _status(ctx)}
    return {"weights": flat(model), "status": _status(ctx), "epochs": history.epoch}


def shared_shuffles(ctx: Any, *, crashes: bool = False) -> dict[str, Any]:
    """Trainings that shuffle on from where earlier ones have ended, with a crash in the fourth."""

    class StopsOrCrashes(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if crashes and epoch == 2:
                raise Crashed

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = self.params["epochs"] == 9

    def shuffled(seed: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(examples(48)).shuffle(48, seed=seed)

    repeated = tf.data.Dataset.from_tensor_slices(examples(48)).repeat().shuffle(48, seed=1).batch(16)
    endless, whole, of_loop = shuffled(6).repeat().batch(16), shuffled(2).batch(16), shuffled(3).batch(16)
    parts, twice = shuffled(4), shuffled(5).repeat(2).batch(16)
    validation = {"validation_data": parts.take(16).batch(16)}
    model = made(ctx, "sgd")

    def loop(num_steps: int) -> np.ndarray:
        with ctx.strategy.scope():
            seen = tf.Variable(tf.zeros(6), aggregation=tf.VariableAggregation.SUM)

        def step_fn(batch: Any) -> dict[str, Any]:
            rows = tf.reduce_sum(batch[0], axis=0)[:1]
            seen.assign(tf.concat([seen[1:] / ctx.strategy.num_replicas_in_sync, rows], axis=0))
            return {"x": tf.reduce_sum(rows)}

        ctx.train_steps(step_fn, of_loop, num_steps=num_steps, steps_per_call=1)
        return seen.numpy()

    ctx.fit(model, repeated, epochs=2, steps_per_epoch=3)
    ctx.fit(model, whole, epochs=9, callbacks=[StopsOrCrashes()])
    loop(6)  # ends where a pass does
    try:
        ctx.fit(model, parts.skip(16).batch(16), epochs=4, **validation, callbacks=[StopsOrCrashes()])
    except Crashed:
        return {"status": _status(ctx)}
    weights = {"parts": flat(model)}
    for name, data, steps in ("repeated", repeated, 2), ("whole", whole, None), ("twice", twice, None):
        ctx.fit(model, data, epochs=2, steps_per_epoch=steps)
        weights[name] = flat(model)
    weights["loop"] = loop(4)
    for _ in range(2):  # TensorFlow reads ahead into the next pass
        ctx.fit(model, endless, epochs=2, steps_per_epoch=2)
    return {**weights, "status": _status(ctx)}


def users_fit_with_callbacks(
    ctx: Any, *, epochs: int, crash_after: int | None = None, form: str = "dataset"
) -> dict[str, Any]:
    class Sequence(tf.keras.utils.Sequence):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, number: int) -> Any:
            return tuple(one[number * 16 : number * 16 + 16] for one in examples(64))

    data = tf.data.Dataset.from_tensor_slices(examples(64)).shuffle(64, seed=1).batch(16)
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam")
        callbacks = [crash(tf.keras, "on_train_batch_end", crash_after - 1)] if crash_after else []
        try:
            model.fit(
                data if form == "dataset" else Sequence(),
                epochs=epochs,
                verbose=0,
                callbacks=[*callbacks, *ctx.callbacks()],
            )
        except Crashed:
            return {"status": _status(ctx)}
    status, weights = _status(ctx), flat(model)
    epochs_of_next = model.fit(data, epochs=2, verbose=0).epoch
    return {"status": status, "weights": weights, "epochs of the next fit": epochs_of_next}


def input_context(ctx: Any) -> dict[str, Any]:
    """train_steps and fit on a function that shards for itself."""

    def shards(context: Any) -> Any:
        data = tf.data.Dataset.from_tensor_slices(examples(32))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(context.get_per_replica_batch_size(8), drop_remainder=True)

    seen = []
    ctx.train_steps(lambda batch: {"x": tf.reduce_sum(batch[0])}, shards, num_steps=9, steps_per_call=2)
    model = made(ctx, "sgd")
    history = ctx.fit(model, shards, epochs=2, steps_per_epoch=4)
    seen.append(len(history.history["loss"]))
    return {"epochs": seen[0], "status": _status(ctx)}


def iterators_that_are_freed(ctx: Any) -> dict[str, Any]:
    """Returns in which threads iterators of several kinds are freed, and what is left to be freed."""
    from raydist import tf_private

    tf_private.FreedIterators.wait_for_all()
    data = tf.data.Dataset.range(4).map(lambda x: x, num_parallel_calls=2)
    here, freed = threading.get_ident(), {}

    def drop(kind: str, iterator: Any, resource: str) -> None:
        next(iterator)
        owner = iterator if kind == "plain" else iterator._iterators[0]._iterator
        weakref.finalize(getattr(owner, resource), lambda: freed.update({kind: threading.get_ident()}))

    drop("plain", iter(data), "_iterator_resource")
    devices = [one.name.removeprefix("/physical_device:") for one in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(devices)
    distributed = strategy.experimental_distribute_dataset(data.batch(2))
    drop("distributed", iter(distributed), "_multi_device_iterator_resource")

    @tf.function
    def total() -> Any:
        found = tf.constant(0, tf.int64)
        for one in data:
            found += one
        return found

    total_found = int(total())
    return {
        "is_freed_here": {kind: one == here for kind, one in freed.items()},
        "num_pending": len(tf_private.FreedIterators._pending),
        "sum": total_found,
    }


def internals(ctx: Any) -> dict[str, Any]:
    from tensorflow.python.distribute.failure_handling import failure_handling
    from tensorflow.python.eager import context

    complete = failure_handling._complete_config_for_environment
    config = tf.distribute.experimental.TerminationConfig
    configs = config(grace_period=60), config(lambda: False, grace_period=60)
    current = context.context()
    fields = context.coordination_config_pb2.CoordinationServiceConfig.DESCRIPTOR.fields_by_name
    arguments = inspect.signature(current.configure_coordination_service).parameters
    return {
        "arguments": sorted(arguments),
        "has": [
            hasattr(current, name)
            for name in ("_context_handle", "coordination_service", "report_error_to_cluster")
        ],
        "version": tf.version.VERSION,
        "needs_field": "cluster_register_with_barrier" in fields,
        "has_argument": "cluster_register_with_barrier" in arguments,
        "grace_periods": [complete(None, one).grace_period for one in configs],
        "has_watcher": [
            one(None, None).termination_watcher_fn is not None for one in (complete, complete.__wrapped__)
        ],
    }


def late_server(ctx: Any) -> dict[str, Any]:
    """Waits for two servers, of which one listens only after a while."""
    import socket
    import threading

    from raydist.tf_private import coordination

    listening = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket() as second:
        second.bind(("127.0.0.1", 0))

        def listen() -> None:
            listening.set()
            second.listen()

        timer = threading.Timer(0.3, listen)
        timer.start()
        coordination.await_servers(f"127.0.0.1:{one.getsockname()[1]}" for one in (first, second))
        has_waited = listening.is_set()
        timer.join()
    return {"has_waited": has_waited}


def unknown_op_types(ctx: Any) -> dict[str, Any]:
    """Returns the names in raydist.op_types that TensorFlow has no operation of."""
    from tensorflow.python.framework import op_def_registry

    from raydist import op_types

    tables = {name: value for name, value in vars(op_types).items() if name.strip("_").isupper()}
    names = {name: {value} if isinstance(value, str) else set(value) for name, value in tables.items()}
    pairs = [(one, name) for name, of in names.items() for one in of]
    unknown = [f"{one} in {name}" for one, name in pairs if op_def_registry.get(one) is None]
    return {"unknown": unknown, "count": len(names)}


def embedding_with_uneven_batches(ctx: Any) -> dict[str, Any]:
    """Trains embeddings, whose gradients are sparse, on batches that look up different numbers of rows."""
    keras = tf.keras
    keras.utils.set_random_seed(7)
    ids = np.arange(970) % 50
    data = tf.data.Dataset.from_tensor_slices((ids.astype("int32"), ids.astype("float32") / 50)).batch(100)
    with ctx.strategy.scope():
        layers = [keras.layers.Embedding(50, 4), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((), dtype="int32"), *layers])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    ctx.fit(model, data, epochs=10)  # enough calls that steps are packed
    weights = {"weights": flat(model)}

    def sentences() -> Any:
        for row in range(90):
            yield (np.arange(1 + row * row % 7) * 7 + row) % 50, float(row % 5)

    shapes = (tf.TensorSpec([None], tf.int32), tf.TensorSpec([], tf.float32))
    data = tf.data.Dataset.from_generator(sentences, output_signature=shapes).padded_batch(11)
    data = data.apply(tf.data.experimental.assert_cardinality(9))
    with ctx.strategy.scope():
        layers = [keras.layers.Embedding(50, 4), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
        optimizer = keras.optimizers.Adam(0.01)
        model.compile(optimizer, "mse", steps_per_execution=4)
    ctx.fit(model, data, epochs=2)

    def step(batch: Any) -> dict[str, Any]:
        loss = descend(
            model, optimizer, lambda: tf.reduce_sum(tf.square(model(batch[0])[:, 0] - batch[1])) / 11
        )
        return {"loss": loss}

    ctx.train_steps(step, data.repeat(), num_steps=12, steps_per_call=4)
    return {**weights, "padded": flat(model)}


def warmed_up(ctx: Any) -> dict[str, Any]:
    """Trains 6 steps with a warm-up of 4 from 0.1 to 0.4; returns each step's learning rate."""
    rate = ctx.scale_learning_rate(0.1, base_batch_size=4, batch_size=16, warmup_steps=4)
    rates = []

    class Rates(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            rates.append(float(rate(self.model.optimizer.iterations.numpy())))

    with ctx.strategy.scope():
        model = dense_model(tf.keras, "sgd")
        model.compile(tf.keras.optimizers.SGD(rate), loss="sparse_categorical_crossentropy")
    ctx.fit(model, tf.data.Dataset.from_tensor_slices(examples(96)).batch(16), epochs=1, callbacks=[Rates()])
    path = f"{tempfile.mkdtemp()}/model.keras"  # every task: saving is a collective in tf_keras
    model.save(path)
    loaded = tf.keras.models.load_model(path).optimizer
    return {
        "rates": rates,
        "loaded": loaded.get_config()["learning_rate"]["config"],
        "float": ctx.scale_learning_rate(0.1, base_batch_size=4, batch_size=16, rule="sqrt"),
        "notes": notes_of(ctx),
    }


def own_mirrored_strategies(ctx: Any) -> dict[str, Any]:
    """Trains under `ctx.strategy`, and in between under MirroredStrategies of each task's own."""

    def total(strategy: Any) -> float:
        @tf.function
        def step() -> Any:
            replica = tf.distribute.get_replica_context
            return strategy.run(lambda: replica().all_reduce("sum", tf.constant(1.0)))

        return float(strategy.experimental_local_results(step())[0])

    x, y = examples(24)
    before = total(ctx.strategy)
    devices, totals, losses = [], [], []
    for own in (tf.distribute.MirroredStrategy(), tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])):
        with own.scope():
            model = dense_model(tf.keras, "sgd")
        losses.append(float(model.fit(x, y, batch_size=8, epochs=1, verbose=0).history["loss"][-1]))
        devices.append(list(own.extended.worker_devices))
        totals.append(total(own))
    return {"devices": devices, "totals": totals, "losses": losses, "around": [before, total(ctx.strategy)]}


def own_loop_before_train_steps(
    ctx: Any, *, stop_after: int | None = None, saves_at: int | None = None
) -> dict[str, Any]:
    """A loop of its own counts 10 steps, and ctx.train_steps does 8 more; a crash leaves some of them."""
    with ctx.strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    done = ctx.restore(total=total) or 0
    for step in range(done, 10):
        if saves_at is not None and stop_after == step:
            run_of(ctx).checkpoints.finish()
            return {"total": float(total.numpy()), "step": ctx.step}
        total.assign_add(1.0)
        ctx.report({"x": 0.0}, step=step + 1)
        if step + 1 == saves_at:
            ctx.save(step=step + 1, total=total)

    def step_fn(batch: Any) -> dict[str, Any]:
        total.assign_add(100.0)
        return {"x": tf.reduce_sum(batch)}

    def data() -> Any:
        return tf.data.Dataset.range(64).batch(4, drop_remainder=True)

    _crash_after(ctx, stop_after)
    try:
        ctx.train_steps(step_fn, data, num_steps=8, steps_per_call=2)
    except Crashed:
        run_of(ctx).checkpoints.finish()
    return {"total": float(total.numpy()), "step": ctx.step}


def changed_and_read(ctx: Any) -> dict[str, Any]:
    """What a traced function changes itself, in a loop, under a condition and in a function that it calls."""
    from raydist import tf_private

    names = ("itself", "loop", "condition", "called", "read", "gathered")
    variables = {name: tf.Variable([1.0, 2.0], name=name) for name in names}
    change = tf.function(lambda: variables["called"].assign_sub([1.0, 1.0]))

    @tf.function
    def function() -> tf.Tensor:
        variables["itself"].assign_add(variables["read"])
        for _ in tf.range(3):
            variables["loop"].assign_add([1.0, 1.0])
        if variables["read"][0] > 0.0:
            variables["condition"].scatter_update(tf.IndexedSlices([5.0], [0]))
        return change() + tf.gather(variables["gathered"], 0)

    found = tf_private.changed_variables(function.get_concrete_function().graph)
    return {"changed": sorted(one.name for one in found)}
