"""Train functions for tests of checkpoints. Import TensorFlow inside only."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from tests.support.train_functions import dense_model, examples


def data(count: int = 200, batch_size: int = 32) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices(examples(count)).shuffle(count, seed=5).batch(batch_size)


def flat(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def upload_waits_for_training(ctx: Any) -> dict[str, Any]:
    """The commit of step 5 ends only once step 8 is done."""
    import tensorflow as tf

    from raydist.storage.checkpoints import CheckpointStore

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
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam")
    ctx.fit(model, data, epochs=2, callbacks=[Watch()])
    threads = [thread.name for thread in threading.enumerate()]
    return {"committed": committed, "threads": threads, "checkpoint": ctx.progress.status().checkpoint}


def hangs_before_the_marker_of(ctx: Any, *, step: int, epochs: int) -> dict[str, Any]:
    """Trains; the marker of `step` is never written, as if storage did not answer any more."""
    import tensorflow as tf

    from raydist.storage.filesystem import Storage

    write = Storage.write_bytes

    def hang(self: Any, key: str, content: bytes, **rest: Any) -> None:
        if f"step-{step}-a0/_COMMITTED" in key:
            time.sleep(300)
        write(self, key, content, **rest)

    Storage.write_bytes = hang  # type: ignore[method-assign]
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam", metrics=("accuracy",))
    ctx.fit(model, data, epochs=epochs)
    return {"weights": flat(model), "restored_step": ctx.progress.status().restored_step}


def checkpoints_cannot_be_stored(ctx: Any, *, way: str) -> dict[str, Any]:
    """Where the folder of checkpoints should be there is a file. Returns what the train function saw."""
    import tensorflow as tf

    from raydist.storage.filesystem import Storage

    Storage.open(ctx.storage).write_bytes("checkpoints", b"no folder")
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam")
    try:
        if way == "fit":
            ctx.fit(model, lambda: data().repeat(), epochs=1, steps_per_epoch=100_000)
        elif way == "train_steps":
            ctx.restore(model=model)
            ctx.train_steps(lambda batch: {"x": tf.reduce_sum(batch[0])}, data(), num_steps=100_000)
        else:
            ctx.save(step=1, model=model)
            ctx.checkpoints.finish()
    except Exception as error:
        ctx.checkpoints.finish()  # raises nothing any more
        return {"error": f"{type(error).__name__}: {error}", "step": ctx.progress.status().step}
    return {"error": ""}


def train_long(ctx: Any, *, way: str, num_steps: int = 1_000_000) -> dict[str, Any]:
    """Trains for one long epoch, or loop; whoever started it saves, kills or waits."""
    import tensorflow as tf

    class Watch(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            pass

    with ctx.strategy.scope():
        steps = 4 if way == "steps per execution" else 1
        model = dense_model(tf.keras, "adam", steps_per_execution=steps, metrics=("accuracy",))
    endless = data().repeat()
    if way == "train_steps":
        train_steps(ctx, model, endless, num_steps=num_steps)
    elif way == "own fit":
        callbacks = ctx.callbacks()
        model.fit(endless, epochs=1, steps_per_epoch=num_steps, verbose=0, callbacks=callbacks)
    elif way == "data of unknown length":
        ended = endless.take(num_steps).filter(lambda *batch: True)
        ctx.fit(model, ended, epochs=1)
    else:
        callbacks = [Watch()] if way == "watched by the chief" and ctx.is_chief else []
        ctx.fit(model, endless, epochs=1, steps_per_epoch=num_steps, callbacks=callbacks)
    status = ctx.progress.status()
    return {"weights": flat(model), "restored_step": status.restored_step, "step": status.step}


def train_steps(ctx: Any, model: Any, dataset: Any, *, num_steps: int) -> None:
    import tensorflow as tf

    with ctx.strategy.scope():
        model.optimizer.build(model.trainable_variables)
    ctx.restore(model=model, optimizer=model.optimizer)

    def step_fn(batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=32)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": tf.reduce_mean(losses)}

    ctx.train_steps(step_fn, dataset, num_steps=num_steps, steps_per_call=10)


def train_long_on_ps(ctx: Any, *, way: str) -> None:
    import tensorflow as tf

    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam", metrics=("accuracy",))
    if way == "train_steps":
        train_steps(ctx, model, lambda: data().repeat(), num_steps=1_000_000)
    else:
        ctx.fit(model, lambda: data().repeat(), epochs=1, steps_per_epoch=1_000_000)
