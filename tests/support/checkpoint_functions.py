"""Train functions for tests of checkpoints."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.storage.checkpoints import CheckpointStore, RestorePoint
from raydist.storage.filesystem import Storage
from raydist.training.checkpointing import variables
from tests.support.in_tasks import Crashed, crash, flat
from tests.support.inside import notes_of, progress_of, run_of
from tests.support.train_functions import bare_step, dense_model, examples, made

keras = tf.keras


def data(count: int = 200, batch_size: int = 32) -> Any:
    return tf.data.Dataset.from_tensor_slices(examples(count)).shuffle(count, seed=5).batch(batch_size)


def upload_waits_for_training(ctx: Any) -> dict[str, Any]:
    """The commit of step 5 ends only once step 8 is done."""
    is_past_8, committed = threading.Event(), []
    commit = CheckpointStore.commit

    def slow(self: Any, *, step: int, **rest: Any) -> Any:
        assert is_past_8.wait(60)
        committed.append(step)
        return commit(self, step=step, **rest)

    class Watch(tf.keras.callbacks.Callback):
        num_steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.num_steps += 1
            if self.num_steps == 8:
                assert committed == []
                is_past_8.set()

    CheckpointStore.commit = slow  # type: ignore[method-assign]
    model = made(ctx, "adam")
    ctx.fit(model, data, epochs=2, callbacks=[Watch()])
    threads = [thread.name for thread in threading.enumerate()]
    return {"committed": committed, "threads": threads, "checkpoint": progress_of(ctx).status().checkpoint}


def checkpoints_cannot_be_stored(ctx: Any) -> dict[str, Any]:
    """Where the folder of checkpoints should be there is a file. Returns what the train function saw."""
    Storage.open(ctx.storage).write_bytes("checkpoints", b"no folder")
    model = made(ctx, "adam")
    try:
        ctx.fit(model, lambda: data().repeat(), epochs=1, steps_per_epoch=100_000)
    except Exception as error:
        run_of(ctx).checkpoints.finish()  # raises nothing any more
        return {"error": f"{type(error).__name__}: {error}", "step": progress_of(ctx).status().step}
    return {"error": ""}


def storage_is_replaced(ctx: Any, *, way: str) -> dict[str, Any]:
    """Trains two epochs, between which the run's storage is moved away; only `fit` makes checkpoints."""

    class Replace(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and ctx.is_chief:
                run_of(ctx).checkpoints.finish()
                Path(ctx.storage).parent.rename(Path(ctx.storage).parent.with_name("moved"))

    model = made(ctx, "adam")
    if way == "fit":
        ctx.fit(model, data, epochs=2, callbacks=[Replace()])
    else:
        model.fit(data(), epochs=2, verbose=0, callbacks=[Replace()])
    return {}


def checkpoint_is_deleted(ctx: Any) -> dict[str, Any]:
    """Trains, and loses its only checkpoint, as on a storage that was another one for a while."""
    model = made(ctx, "adam")
    ctx.fit(model, data, epochs=1)
    run_of(ctx).checkpoints.finish()
    shutil.rmtree(Path(ctx.storage) / "checkpoints")
    return {}


def train_long(ctx: Any, *, way: str, num_steps: int = 1_000_000) -> dict[str, Any]:
    """Trains for one long epoch, or loop; whoever started it saves, kills or waits."""

    class Watch(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam", metrics=("accuracy",))
    endless = data().repeat()
    if way == "own loop":
        own_loop(ctx, model, endless, num_steps=num_steps)
    else:
        callbacks = [Watch()] if way == "watched by the chief" and ctx.is_chief else []
        ctx.fit(model, endless, epochs=1, steps_per_epoch=num_steps, callbacks=callbacks)
    status = progress_of(ctx).status()
    return {"weights": flat(model), "restored_step": status.restored_step, "step": status.step}


def own_loop(ctx: Any, model: Any, dataset: Any, *, num_steps: int) -> None:
    with ctx.strategy.scope():
        model.optimizer.build(model.trainable_variables)
    step = bare_step(model, global_batch_size=32)
    batches = iter(ctx.strategy.experimental_distribute_dataset(dataset))
    run = tf.function(lambda: ctx.strategy.run(step, args=(next(batches),)))
    for number in range(1, num_steps):
        run()
        ctx.report({"loss": 0.0}, step=number)
        if ctx.wants_save():
            ctx.save(step=number, model=model, optimizer=model.optimizer)


def early_stopping(ctx: Any, *, crash_in: int | None = None) -> dict[str, Any]:
    """The score is best in epoch 2, then wait is 1 and 2: training stops after epoch 4."""
    scores = [5.0, 4.0, 3.0, 3.5, 3.6, 1.0, 1.0, 1.0]

    class Score(keras.callbacks.Callback):
        num_epochs = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.num_epochs += 1
            logs["score"] = scores[epoch]

        def get_state(self) -> Any:
            return {"num_epochs": self.num_epochs}

        def set_state(self, state: Any) -> None:
            self.num_epochs = state["num_epochs"]

    with ctx.strategy.scope():
        model = dense_model(keras, "adam")
    callbacks = [
        Score(),
        keras.callbacks.ReduceLROnPlateau(monitor="score", patience=2, factor=0.5, mode="min"),
        keras.callbacks.EarlyStopping(monitor="score", patience=2, mode="min", restore_best_weights=True),
    ]
    try:
        history = ctx.fit(
            model,
            lambda: data().repeat(),
            epochs=len(scores),
            steps_per_epoch=6,
            callbacks=[*callbacks, crash(keras, "on_epoch_begin", crash_in)],
        )
    except Crashed:
        return {}
    rate, status = model.optimizer.learning_rate, progress_of(ctx).status()
    return {
        "weights": flat(model),
        "awaited_steps": status.num_steps - status.step,
        "epochs": history.epoch,
        "num_epochs": callbacks[0].num_epochs,
        "wait": [callbacks[1].wait, callbacks[2].wait, callbacks[2].best_epoch],
        "rate": float(rate.numpy() if hasattr(rate, "numpy") else rate),
        "notes": list(status.notes),
        "restored_step": status.restored_step,
    }


def random_numbers(ctx: Any, *, crash_at: int | None = None) -> dict[str, Any]:
    """Dropout, an unseeded layer, and draws of a callback; raises at step `crash_at`."""
    drawn: list[float] = []

    class Noise(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs + 0.1 * keras.random.normal((6,))  # from Keras's global generator

    class Draw(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            generator = tf.random.get_global_generator()
            drawn.append([float(tf.random.uniform(())), float(generator.uniform(()))])

    tf.random.set_global_generator(tf.random.Generator.from_seed(3))
    keras.utils.set_random_seed(11)
    with ctx.strategy.scope():
        # With several replicas Keras cannot make its generator: each is traced in a thread, for which it
        # would make one of its own, inside of the step.
        noise = [Noise()] if hasattr(keras, "random") and ctx.strategy.num_replicas_in_sync == 1 else []
        layers = [keras.Input((6,)), *noise, keras.layers.Dense(16), keras.layers.Dropout(0.5)]
        model = keras.Sequential([*layers, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
    try:
        ctx.fit(model, data, epochs=3, callbacks=[crash(keras, "on_train_batch_begin", crash_at), Draw()])
    except Crashed:
        return {}
    status = progress_of(ctx).status()
    return {
        "weights": flat(model),
        "drawn": np.array(drawn),
        "restored_step": status.restored_step,
        "has_noise": bool(noise),
        "notes": [note for note in status.notes if "draw random numbers" not in note],
    }


def ends_an_epoch(ctx: Any, *, crash_in: int | None = None, is_size_known: bool = True) -> dict[str, Any]:
    """Trains three shuffled epochs; raises when epoch `crash_in` has done its last step, before it ends."""
    model = made(ctx, "adam")
    shuffled = data() if is_size_known else data().filter(lambda x, y: True)
    try:
        history = ctx.fit(model, shuffled, epochs=3, callbacks=[crash(tf.keras, "on_epoch_end", crash_in)])
    except Crashed:
        return {}
    losses = np.array(history.history["loss"])
    return {"weights": flat(model), "losses": losses, "steps": progress_of(ctx).status().step}


def restored_differently(ctx: Any, *, way: str) -> None:
    """Saves; then worker/1 sees no checkpoint, or gets another weight than the others."""
    model = made(ctx, "adam")
    write = variables.write

    def write_and_change(groups: Any, files: Any, *, checkpoint: str) -> None:
        write(groups, files, checkpoint=checkpoint)
        weight = groups["model"][0]
        weight.assign(tf.tensor_scatter_nd_add(weight, [[0, 0]], [1e-6]))

    if ctx.attempt == 1 and not ctx.is_chief:
        if way == "no checkpoint":
            CheckpointStore.latest_whole = lambda self, **_: RestorePoint(checkpoint=None)  # type: ignore[method-assign]
        else:
            variables.write = write_and_change
    ctx.fit(model, data, epochs=ctx.attempt + 1)


def trained_for_export(ctx: Any, *, kind: str = "dense", num_fits: int = 1) -> dict[str, Any]:
    """Trains, and returns what the model predicts; the export has to predict the same."""

    class Subclassed(keras.Model):
        """Takes the layer in its middle, which only a get_config could tell; counts what it sees."""

        def __init__(self, middle: Any) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(8)
            self.layers_in_a_dict = {"middle": middle, "last": keras.layers.Dense(3)}
            self.normal = keras.layers.BatchNormalization()
            self.seen = keras.metrics.Mean(name="seen")
            self.was_trained = False

        def call(self, inputs: Any, training: bool = False) -> Any:
            self.was_trained = self.was_trained or bool(training)
            if kind == "untraceable" and self.was_trained and not training:
                raise NotImplementedError("no lookups\nsecond line")
            if not keras.Model.__module__.startswith("tf_keras"):  # whose `fit` calls it outside of replicas
                self.seen.update_state(inputs)
            hidden = self.layers_in_a_dict["middle"](self.normal(self.dense(inputs), training=training))
            return self.layers_in_a_dict["last"](hidden)

        def get_config(self) -> Any:
            raise NotImplementedError("no config")

    class Configured(Subclassed):
        def get_config(self) -> Any:
            return {"units": 4}

        @classmethod
        def from_config(cls, config: Any, custom_objects: Any = None) -> Any:
            return cls(keras.layers.Dense(config["units"]))

    made = {"config": Configured, "dense": None}.get(kind, Subclassed)
    with ctx.strategy.scope():
        keras.utils.set_random_seed(7)
        if made is None:  # with moving statistics, which are exported too
            layers = [keras.Input((6,)), keras.layers.Dense(8), keras.layers.BatchNormalization()]
            model = keras.Sequential([*layers, keras.layers.Dense(3)])
        else:
            model = made(keras.layers.Dense(4))
        # Falls with each epoch, and among scores the highest is best.
        score = keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="score")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("sgd", loss, metrics=[score])

    for _ in range(num_fits):
        ctx.fit(model, lambda: data().repeat(), epochs=3, steps_per_epoch=6)
    # Read as whole arrays, because Keras's predict is not for ParameterServer.
    arrays = [np.asarray(part.read_value()) for part in variables.variables_of("model", model)]
    x = np.linspace(-1, 1, 24).reshape(4, 6).astype("float32")
    predicted = {}
    if made is not None:
        # What a model of the same class makes of its weights, outside of the strategy.
        plain = made(keras.layers.Dense(4))
        plain(x)
        for variable, array in zip(variables.variables_of("model", plain), arrays, strict=True):
            variable.assign(array)
        predicted = {"predicted": np.asarray(plain(x))}
    return {
        **predicted,
        **{f"weight-{number:02d}": array for number, array in enumerate(arrays)},
        "notes": notes_of(ctx),
    }


def generators(ctx: Any) -> dict[str, Any]:
    """Draws, saves, and draws on; the second attempt restores and draws the same."""
    import keras

    tensorflow_s, keras_s = tf.random.Generator.from_seed(1), keras.random.SeedGenerator(2)

    def draw() -> list[float]:
        return [float(tensorflow_s.uniform(())), float(keras.random.uniform((), seed=keras_s))]

    if ctx.restore(tensorflow_s=tensorflow_s, keras_s=keras_s) is None:
        draw()
        ctx.save(step=1, tensorflow_s=tensorflow_s, keras_s=keras_s)
    return {"drawn": draw()}


def two_models_with_state_outside(ctx: Any, *, epochs: int, second: bool) -> dict[str, Any]:
    """Trains a model whose step has state in variables that no model lists.

    Args:
      epochs: Of the model, or of the second one.
      second: Whether a second model is trained, and then the first one again.
    """

    class Averaging(keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, self(x), True))
            weights = self.trainable_variables
            gradients = tape.gradient(loss, weights)
            # All of one shape, and each with another value.
            total = tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])
            for index in (2, 0, 4, 1, 3):
                outside[index].assign(outside[index] * 0.5 + total * index)
            scale = 1.0 + 0.1 * tf.tanh(outside[4] - outside[1])
            gradients = [gradient * scale for gradient in gradients]
            self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
            return {"own": loss}

    keras.utils.set_random_seed(4)
    with ctx.strategy.scope():
        outside = [
            tf.Variable(
                1.0, trainable=False, aggregation=tf.VariableAggregation.MEAN, name=f"outside_{index}"
            )
            for index in range(5)
        ]
        inputs = keras.Input((6,))
        first = Averaging(inputs, keras.layers.Dense(3)(inputs))
        first.compile(keras.optimizers.Adam(0.01))
        other = dense_model(keras, "adam")
    ctx.fit(first, data(), epochs=2 if second else epochs)
    if second:
        ctx.fit(other, data(), epochs=epochs)
        if epochs > 1:
            ctx.fit(first, data(), epochs=2)
    return {
        "weights": np.concatenate([flat(first), flat(other)]),
        "outside": np.array([variable.numpy() for variable in outside]),
        "restored_step": progress_of(ctx).status().restored_step,
    }


def keeps_best(ctx: Any) -> dict[str, Any]:
    """Trains two epochs, of which the second one validates; returns the notes after each."""
    x, y = np.eye(4, dtype="float32"), np.ones([4, 1], "float32")
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    notes: list[list[str]] = []

    class Noted(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            notes.append([one for one in notes_of(ctx) if "--keep-best" in one])

    options = {"validation_data": (x, y), "validation_freq": 2, "callbacks": [Noted()], "verbose": 0}
    ctx.fit(model, x, y, epochs=2, shuffle=False, **options)
    return {"notes": notes}
