"""Trainings whose workers read weights once for several steps, and what they have to result in.

Import TensorFlow inside only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import raydist.data
from tests.support.inside import forget_notes, notes_of, progress_of

BATCH_SIZE, NUM_BATCHES, NUM_IDS = 8, 24, 40


def train(
    ctx: Any,
    *,
    way: str,
    kind: str,
    optimizer: str,
    epochs: int,
    steps_per_epoch: int,
    fail_at: int | None = None,
    is_unrolled: bool = False,
) -> dict[str, Any]:
    """Trains by `ctx.fit` or `ctx.train_steps` (`way`); returns weights, logs, and what is counted.

    Args:
      fail_at: Steps after which it raises.
      is_unrolled: Whether closures unroll their steps whatever time those take.
    """
    import tensorflow as tf

    if is_unrolled:
        from raydist.training.parameter_server import closure_sizes

        closure_sizes._SAVED = closure_sizes._SHORT_STEP_S = 1e9
    if fail_at is not None:
        _fail(ctx, at=fail_at)
    keras, before = tf.keras, ctx.step
    with ctx.strategy.scope():
        model, made = _model(keras, kind), _optimizer(keras, optimizer)
        made.build(model.trainable_variables)
        model.compile(made, "mse", metrics=["mae", _count_of_examples(keras)])
    data = _batches(kind) if is_unrolled else _dataset(kind)
    history: dict[str, Any] = {}
    if way == "fit":
        options = {"epochs": epochs, "steps_per_epoch": steps_per_epoch}
        history = ctx.fit(model, data, verbose=0, **options).history
    else:
        ctx.restore(model=model, optimizer=made)
        ctx.train_steps(_step_of(model, made), data, num_steps=epochs * steps_per_epoch)
    return {
        "weights": _flat(model),
        "iterations": int(made.iterations.numpy()),
        "steps": progress_of(ctx).status().step - before,
        "history": history,
        "notes": [note for note in notes_of(ctx) if "ps_staleness" in note],
    }


def simulate(
    ctx: Any, *, kind: str, optimizer: str, segments: Sequence[int], shared: int, shares_rows: bool
) -> dict[str, Any]:
    """Trains with each gradient of weights that are read once for `shared` steps.

    The steps at the end of each segment that are fewer than that read the weights each. Returns the weights,
    and the mean loss and error of each segment.

    Args:
      shares_rows: Whether the rows of an embedding are read as seldom as the other weights.
    """
    import tensorflow as tf

    live, seen = _model(tf.keras, kind), _model(tf.keras, kind)
    made = _optimizer(tf.keras, optimizer)
    made.build(live.trainable_variables)
    is_shared = [shares_rows or "embeddings" not in one.name for one in live.trainable_variables]
    x, y = _data(kind)

    @tf.function
    def step(features: Any, labels: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            errors = seen(features, training=True) - labels
            loss = tf.reduce_mean(errors**2)
        gradients = tape.gradient(loss, seen.trainable_variables)
        made.apply_gradients(zip(gradients, live.trainable_variables, strict=True))
        return loss, tf.reduce_mean(tf.abs(errors))

    means, index = [], 0
    for length in segments:
        found = []
        for place in range(length):
            is_reading = place % shared == 0 or place >= length - length % shared
            pairs = zip(seen.trainable_variables, live.trainable_variables, is_shared, strict=True)
            for to, of, may_wait in pairs:
                if is_reading or not may_wait:
                    to.assign(of)
            at = index % NUM_BATCHES * BATCH_SIZE
            found.append([float(one) for one in step(x[at : at + BATCH_SIZE], y[at : at + BATCH_SIZE])])
            index += 1
        means.append(np.mean(found, axis=0))
    return {"weights": _flat(live), "means": np.array(means)}


def inert(ctx: Any) -> dict[str, Any]:
    """Trains in ways that share fewer readings than was asked for; returns the notes of each."""
    import tensorflow as tf

    keras = tf.keras
    with ctx.strategy.scope():
        model, made = _model(keras, "dense"), keras.optimizers.SGD(0.1)
        made.build(model.trainable_variables)
        model.compile(made, "mse")
    data, own = _dataset("dense"), _step_of(model, made)

    def gradients(batch: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch[0]) - batch[1]) ** 2)
        return loss, tape.gradient(loss, model.trainable_variables)

    def by_hand(batch: Any) -> dict[str, Any]:
        loss, found = gradients(batch)
        for variable, gradient in zip(model.trainable_variables, found, strict=True):
            variable.assign(variable - 0.1 * gradient)
        return {"loss": loss}

    traced = tf.function(gradients)

    def in_function(batch: Any) -> dict[str, Any]:
        loss, found = traced(batch)
        made.apply_gradients(zip(found, model.trainable_variables, strict=True))
        return {"loss": loss}

    def fit(steps_per_epoch: int) -> None:
        ctx.fit(model, data, epochs=2, steps_per_epoch=steps_per_epoch, verbose=0)

    calls = {
        "whole": lambda: ctx.train_steps(own, data, num_steps=12),
        "one step a call": lambda: ctx.train_steps(own, data, num_steps=6, steps_per_call=1),
        "short calls": lambda: ctx.train_steps(own, data, num_steps=6, steps_per_call=3),
        "assigned by hand": lambda: ctx.train_steps(by_hand, data, num_steps=12),
        "in a tf.function": lambda: ctx.train_steps(in_function, data, num_steps=12),
        "epochs of one step": lambda: fit(1),
        "short epochs": lambda: fit(4),
    }
    found = {}
    for name, call in calls.items():
        forget_notes(ctx)
        call()
        found[name] = [note for note in notes_of(ctx) if "ps_staleness" in note]
    return found


def own_loop(ctx: Any) -> dict[str, Any]:
    """Trains by the bare coordinator; what is noted at the session's end is printed."""
    import tensorflow as tf

    with ctx.strategy.scope():
        weight = tf.Variable(0.0)
    ctx.coordinator.schedule(tf.function(lambda: weight.assign_add(1.0)))
    ctx.coordinator.join()
    return {"weight": float(weight.numpy())}


def learn(ctx: Any, *, epochs: int) -> dict[str, Any]:
    """Learns scikit-learn's digits by `ctx.fit`; returns the logs and the loss on all of them."""
    import tensorflow as tf
    from sklearn.datasets import load_digits

    keras = tf.keras
    keras.utils.set_random_seed(5)
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16.0).astype("float32"), y.astype("int64")
    with ctx.strategy.scope():
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        model = keras.Sequential([keras.layers.Input((64,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=[_count_of_examples(keras)])

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2000, seed=1).batch(32, drop_remainder=True)

    steps = len(x) // 32
    history = ctx.fit(model, data, epochs=epochs, steps_per_epoch=steps, verbose=0).history
    return {
        "loss": float(tf.reduce_mean(loss(y, model(x)))),
        "history": history,
        "iterations": int(model.optimizer.iterations.numpy()),
        "steps": progress_of(ctx).status().step,
        "examples": steps * 32,
    }


def _fail(ctx: Any, *, at: int) -> None:
    """Has the chief raise once so many steps are counted."""
    progress = progress_of(ctx)
    completed = progress.completed

    def counted(step: int, **more: Any) -> None:
        completed(step, **more)
        if step >= at:
            raise RuntimeError("as asked")

    progress.completed = counted


def _step_of(model: Any, optimizer: Any) -> Any:
    import tensorflow as tf

    def step(batch: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(batch[0], training=True) - batch[1]) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    return step


def _count_of_examples(keras: Any) -> Any:
    class Examples(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="examples", dtype="float64")
            self.total = self.add_weight(name="total", shape=(), initializer="zeros", dtype="float64")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            import tensorflow as tf

            self.total.assign_add(tf.cast(tf.shape(y_true)[0], "float64"))

        def result(self) -> Any:
            return self.total

        def reset_state(self) -> None:
            self.total.assign(0.0)

    return Examples()


def _flat(model: Any) -> np.ndarray:
    return np.concatenate([one.reshape(-1) for one in model.get_weights()])


def _dataset(kind: str) -> Any:
    x, y = _data(kind)

    def data() -> Any:
        import tensorflow as tf

        return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)

    return data


def _batches(kind: str) -> Any:
    """The same, of which a closure is told what steps are its own."""
    return raydist.data.from_arrays(_data(kind)).batches(global_batch_size=BATCH_SIZE, shuffle=False)


def _data(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    count = BATCH_SIZE * NUM_BATCHES
    if kind == "embedding":
        ids = rng.integers(0, NUM_IDS, (count, 3))
        return ids, np.sin(ids.sum(axis=1)).astype("float32")[:, None]
    x = rng.normal(size=(count, 4)).astype("float32")
    return x, np.tanh(x[:, :1] - x[:, 1:2]).astype("float32")


def _model(keras: Any, kind: str) -> Any:
    keras.utils.set_random_seed(3)
    hidden = [keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    if kind == "embedding":
        table = [keras.layers.Embedding(NUM_IDS, 4), keras.layers.Flatten()]
        return keras.Sequential([keras.layers.Input((3,), dtype="int64"), *table, *hidden])
    return keras.Sequential([keras.layers.Input((4,)), *hidden])


def _optimizer(keras: Any, name: str) -> Any:
    if name == "sgd":
        return keras.optimizers.SGD(0.1)
    return {"adam": keras.optimizers.Adam(0.02), "adagrad": keras.optimizers.Adagrad(0.1)}[name]
