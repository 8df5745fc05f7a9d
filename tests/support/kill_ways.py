"""The ways of training that tasks are killed in. Travels with the job of each run, beside kill_places.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import kill_places
import numpy as np
import tensorflow as tf

import raydist

keras = tf.keras
EPOCHS, STEPS, BATCH = kill_places.EPOCHS, kill_places.STEPS_PER_EPOCH, 12
SAVED_EVERY, NUM_STEPS = kill_places.SAVED_EVERY, kill_places.NUM_STEPS


def passing(what: str, value: Any) -> Any:
    """Returns `value`, once a step on this replica has passed that place."""

    def passes(one: Any) -> Any:
        kill_places.passes(what)
        return one

    ran = tf.numpy_function(passes, [tf.constant(0.0)], tf.float32)
    with tf.control_dependencies([ran]):
        return tf.identity(value)


class InStep(keras.layers.Layer):
    def call(self, inputs: Any) -> Any:
        return passing("in a step", inputs)


class Shown(keras.callbacks.Callback):
    """Has all of the hooks, so that a call of the train function is one step."""

    def __init__(self, places: kill_places.Places | None) -> None:
        super().__init__()
        self.places = places
        self.first_step = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        kill_places.passes("batch begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.places is not None:  # of a plain fit, in which nothing else counts
            self.places.shown(self.first_step + batch + 1, logs)
        kill_places.passes("batch end")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        kill_places.passes("test batch end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.first_step = epoch * STEPS

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        kill_places.passes("epoch end")


def arrays() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS * BATCH, 6)).astype("float32")
    return x, (x[:, 0] > 0).astype("int64")


def dataset(*, is_shuffled: bool = True) -> Any:
    x, y = arrays()
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.shuffle(len(x), seed=2) if is_shuffled else data
    return data.batch(BATCH, drop_remainder=True).map(lambda x, y: (passing("in the data", x), y))


def made(*, is_remote: bool = False, is_random: bool = True) -> Any:
    """Returns a compiled model; one whose steps run in other processes has no place in them."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization()]
    layers += [keras.layers.Dropout(0.3, seed=5)] if is_random else []
    layers += [] if is_remote else [InStep()]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def ended(places: kill_places.Places, model: Any, optimizer: Any) -> None:
    held = [*model.variables, *optimizer.variables]
    kill_places.passes("the end")
    places.end({f"{number} {getattr(one, 'path', one.name)}": one for number, one in enumerate(held)})


def fit(ctx: raydist.TrainContext) -> None:
    """Without a callback that has hooks of batches, a call of the train function takes several steps."""
    from raydist.training.trainers import run_callbacks

    places = kill_places.Places(ctx)
    original = run_callbacks._Progress.on_train_batch_end

    def on_train_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        original(self, batch, logs)
        places.shown(self.position.step, logs)

    run_callbacks._Progress.on_train_batch_end = on_train_batch_end
    with ctx.strategy.scope():
        model = made()
    x, y = arrays()
    callbacks = [] if ctx.params.get("packs") else [Shown(None)]
    ctx.fit(model, dataset(), epochs=EPOCHS, validation_data=(x[:60], y[:60]), callbacks=callbacks, verbose=0)
    ended(places, model, model.optimizer)


def parameter_server(ctx: raydist.TrainContext) -> None:
    places = kill_places.Places(ctx)
    with ctx.strategy.scope():
        model = made(is_remote=True)

    def data() -> Any:
        x, y = arrays()
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True)

    ctx.fit(model, data, epochs=EPOCHS, steps_per_epoch=STEPS, callbacks=[Shown(places)], verbose=0)
    ended(places, model, model.optimizer)


def loop(ctx: raydist.TrainContext) -> None:
    from raydist.training.trainers import custom_loop

    places = kill_places.Places(ctx)
    with ctx.strategy.scope():
        model = made()
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
    original = custom_loop.Loop.completed

    def completed(self: Any, count: int, metrics: Any) -> bool:
        is_due = original(self, count, metrics)
        places.shown(self.done, {f"{name} of {count}": value for name, value in metrics.items()})
        return is_due

    custom_loop.Loop.completed = completed
    ctx.restore(model=model, optimizer=optimizer)
    ctx.train_steps(
        step_function(model, optimizer),
        dataset().repeat(),
        num_steps=NUM_STEPS,
        steps_per_call=ctx.params.get("steps_per_call", 1),
    )
    ended(places, model, optimizer)


def step_function(model: Any, optimizer: Any) -> Any:
    def step_fn(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True), from_logits=True
            )
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": passing("after apply", loss)}

    return step_fn


def own_loop(ctx: raydist.TrainContext) -> None:
    places = kill_places.Places(ctx)
    strategy = ctx.strategy
    with strategy.scope():
        model = made()
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
    first = ctx.restore(model=model, optimizer=optimizer) or 0
    step_fn = step_function(model, optimizer)

    @tf.function
    def step(batch: Any) -> Any:
        losses = strategy.run(lambda one: step_fn(one)["loss"], args=(batch,))
        return strategy.reduce("SUM", losses, axis=None)

    batches = iter(strategy.experimental_distribute_dataset(dataset(is_shuffled=False).repeat().skip(first)))
    for done in range(first + 1, NUM_STEPS + 1):
        loss = float(step(next(batches)))
        places.shown(done, {"loss": loss})
        ctx.report({"loss": loss}, step=done)
        if done % SAVED_EVERY == 0 or done == NUM_STEPS:
            ctx.save(step=done, model=model, optimizer=optimizer)
    ended(places, model, optimizer)


def script() -> None:
    """A program that knows nothing of raydist but for its places."""
    places = kill_places.Places(raydist.context())
    kill_places.passes("before the strategy")
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = made(is_random=False)  # Keras's backups do not have the states of SeedGenerators
    backup = keras.callbacks.BackupAndRestore(str(Path(os.environ[kill_places.FOLDER], "backup")))
    model.fit(dataset(is_shuffled=False), epochs=EPOCHS, callbacks=[backup, Shown(places)], verbose=0)
    ended(places, model, model.optimizer)
