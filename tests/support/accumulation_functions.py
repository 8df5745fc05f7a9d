"""Train functions that make one update from several batches.

`batches` says how many make one. On one device with 1 the batch is as large as that of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import raydist.data
from raydist.errors import MistakeError
from tests.support.communication_functions import Watch
from tests.support.in_tasks import flat
from tests.support.inside import notes_of, progress_of
from tests.support.late import LateModule
from tests.support.train_functions import dense_model, examples, made

tf = LateModule("tensorflow")

K = 3
BATCH = 13  # of 97 examples: 8 batches, in updates of 3, 3 and 2, the last batch with 6 examples
COUNT = 97


def _dataset(values: Any, batches: int) -> Any:
    size = BATCH if batches > 1 else BATCH * K
    return tf.data.Dataset.from_tensor_slices(values).shuffle(COUNT, seed=3).batch(size)


def dense(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    model = made(ctx, "adam", metrics=("accuracy",))
    return model, _dataset(examples(COUNT), batches), {}


def clipped(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    """The sum is clipped; each example has a weight."""
    x, y = examples(COUNT)
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "sgd")
        model.compile(
            optimizer=tf.keras.optimizers.SGD(0.5, global_clipnorm=0.05),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    weights = np.linspace(0.1, 3.0, COUNT).astype("float32")
    return model, _dataset((x, y, weights), batches), {}


def class_weights(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    model, data, _ = dense(ctx, batches)
    return model, data, {"class_weight": {0: 0.2, 1: 1.0, 2: 4.0}}


def masked(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    """A masked sequence, whose loss is a mean over the valid entries; a sparse gradient."""
    keras = tf.keras
    rng = np.random.default_rng(5)
    ids = rng.integers(1, 20, size=(COUNT, 7)).astype("int64")
    ids[np.arange(7)[None, :] >= rng.integers(1, 8, size=COUNT)[:, None]] = 0
    labels = (ids % 3).astype("int64")
    keras.utils.set_random_seed(7)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((7,), dtype="int64"),
                keras.layers.Embedding(20, 4, mask_zero=True),
                keras.layers.Dense(3, kernel_regularizer=keras.regularizers.L2(1e-2)),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(0.05),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    return model, _dataset((ids, labels), batches), {}


def half(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    """mixed_float16, whose first loss scale overflows, so that steps are skipped; one weight is unused."""
    keras = tf.keras

    class Unused(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.unused = self.add_weight(shape=(2,), name="unused")

        def call(self, inputs: Any) -> Any:
            return inputs

    keras.utils.set_random_seed(7)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with ctx.strategy.scope():
            model = keras.Sequential(
                [
                    keras.layers.Input((6,)),
                    keras.layers.Dense(8, activation="tanh"),
                    Unused(),
                    keras.layers.Dense(3),
                    keras.layers.Activation("linear", dtype="float32"),
                ]
            )
            sgd = keras.optimizers.SGD(0.1)
            optimizer = keras.mixed_precision.LossScaleOptimizer(sgd, initial_scale=2.0**20)
            model.compile(
                optimizer=optimizer, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            )
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return model, _dataset(examples(COUNT), batches), {}


def own_step(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    """A train_step with a mean over its batch, and a value that is not a metric."""
    keras = tf.keras

    class Own(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=self(x))
                )
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own": loss}

    keras.utils.set_random_seed(7)
    with ctx.strategy.scope():
        model = Own()
        model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    return model, _dataset(examples(COUNT), batches), {}


def generated(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    """Data of unknown size."""
    model, data, _ = dense(ctx, batches)
    return model, data.filter(lambda x, y: True), {}


def endless(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    """An epoch of a number of updates."""
    model, data, _ = dense(ctx, batches)
    return model, data.unbatch().repeat().batch(BATCH if batches > 1 else BATCH * K), {"steps_per_epoch": 2}


def from_raydist(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    model, _, _ = dense(ctx, batches)
    source = raydist.data.from_arrays(examples(COUNT))
    # Not shuffled over more than an epoch: which examples make up an update depends on the batch size.
    data = source.batches(global_batch_size=BATCH if batches > 1 else BATCH * K, seed=1, shuffle=False)
    return model, data, {}


def distributed(ctx: Any, batches: int) -> tuple[Any, Any, dict[str, Any]]:
    """TensorFlow divides the batches, of which the last is as large as the others."""
    model, _, _ = dense(ctx, batches)
    data = tf.data.Dataset.from_tensor_slices(examples(72)).batch(12 if batches > 1 else 12 * K)
    return model, ctx.strategy.experimental_distribute_dataset(data), {}


CASES: dict[str, Callable[[Any, int], tuple[Any, Any, dict[str, Any]]]] = {
    one.__name__: one
    for one in (
        dense,
        clipped,
        class_weights,
        masked,
        half,
        own_step,
        generated,
        endless,
        from_raydist,
        distributed,
    )
}


def trained(ctx: Any, *, case: str, batches: int) -> dict[str, Any]:
    """Trains a case with `batches` to an update; returns its weights, history, steps and collectives."""
    model, data, arguments = CASES[case](ctx, batches)
    collectives = Watch("CollectiveReduceV2")
    before = ctx.step
    history = ctx.fit(model, data, epochs=2, accumulate=batches, **arguments)
    # Of integers are those by which TensorFlow asks, for each batch, whether another worker has data.
    is_count = tf.int64.as_datatype_enum
    names = [one["function"] for one in collectives.new() if one["type"] != is_count]
    return {
        "weights": flat(model),
        "iterations": int(model.optimizer.iterations.numpy()),
        "step": ctx.step - before,
        "reductions": max([0, *(names.count(name) for name in names)]),
        "notes": notes_of(ctx),
        **{f"history {name}": np.array(values) for name, values in history.history.items()},
    }


def calls(batches: int, cases: Iterable[str]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Returns the calls of `trained` for `run_in_turn`."""
    return {
        f"{case} {batches}": (f"{__name__}:trained", {"case": case, "batches": batches}) for case in cases
    }


def resumed(ctx: Any, *, stop_after: int | None) -> dict[str, Any]:
    """Three epochs of three updates. `stop_after` raises after that many; None trains undisturbed, too."""

    class Crash(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        num_steps = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if self.num_steps == stop_after:
                raise RuntimeError("crashed")
            self.num_steps += 1

    model, data, _ = dense(ctx, K)
    crash = Crash()
    try:
        history = ctx.fit(model, data, epochs=3, accumulate=K, callbacks=[crash])
    except RuntimeError as error:
        if "crashed" not in str(error):
            raise
        return {"num_steps": crash.num_steps}
    again, data, _ = dense(ctx, 1)
    undisturbed = ctx.fit(again, data, epochs=3)
    return {
        "num_steps": crash.num_steps,
        "restored": progress_of(ctx).status().restored_step,
        "weights": flat(model),
        "undisturbed": flat(again),
        "loss": np.array(history.history["loss"]),
        "undisturbed loss": np.array(undisturbed.history["loss"]),
    }


def resumed_with_other_size(ctx: Any) -> dict[str, Any]:
    model, data, _ = dense(ctx, K)
    try:
        ctx.fit(model, data, epochs=3, accumulate=2)
    except MistakeError as error:
        return {"error": str(error)}
    return {"error": ""}


def refused(ctx: Any) -> dict[str, Any]:
    """Returns what models are answered with whose batches cannot make one update, by what they do."""
    keras = tf.keras

    class Own(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.dense, self.kind = keras.layers.Dense(3), kind

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=self(x))
                loss = tf.reduce_mean(losses)
                if self.kind == "scales":
                    loss /= tf.distribute.get_strategy().num_replicas_in_sync
            variables = self.trainable_variables
            gradients = tape.gradient(loss, variables)
            if self.kind == "clips":
                gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
            for _ in range(2 if self.kind == "updates twice" else 1):
                self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
            if self.kind == "assigns":
                for variable in variables:
                    variable.assign(tf.clip_by_value(variable, -0.1, 0.1))
            return {"loss": loss}

    def error_of(kind: str, accumulate: Any) -> str:
        with ctx.strategy.scope():
            model = Own(kind)
            model.compile(optimizer=keras.optimizers.SGD(0.1))
        try:
            ctx.fit(model, _dataset(examples(COUNT), K), epochs=1, accumulate=accumulate)
        except MistakeError as error:
            return str(error)
        return ""

    found = {kind: error_of(kind, K) for kind in ("updates twice", "clips", "assigns", "scales", "is plain")}
    return {**found, "none": error_of("is plain", 0), "half": error_of("is plain", 1.5)}
