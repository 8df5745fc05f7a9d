"""Steps: how fast model.fit goes under MultiWorkerMirrored with 2 workers, against stock and by hand.

    python -m tests.benchmarks.steps [--rounds 3]

A small dense model with 4 metrics, the same data and cluster. In each round, one after the other:
stock tf_keras `model.fit`, raydist's with tf_keras and with Keras 3, and a hand-written custom loop
with one fused gradient all-reduce and no metrics. Prints steps/s and the ratios of the medians
(targets: at least 8 times stock, at least 0.9 of the custom loop), and that the epoch metrics agree.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from tests.benchmarks.figures.printing import figure
from tests.support.processes import Cluster, run_function

STEPS = 300
STOCK_STEPS = 60
BATCH = 64


def make_model(tf: Any, *, steps_per_execution: int = 1) -> Any:
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((32,)),
            layers.Dense(64, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile(
        tf.keras.optimizers.SGD(0.01),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[
            "sparse_categorical_accuracy",
            tf.keras.metrics.SparseTopKCategoricalAccuracy(k=3),
            "sparse_categorical_crossentropy",
        ],
        steps_per_execution=steps_per_execution,
    )
    return model


def make_data(tf: Any, num_steps: int) -> Any:
    rng = tf.random.Generator.from_seed(1)
    x, y = rng.normal((BATCH * 20, 32)), rng.uniform((BATCH * 20,), maxval=10, dtype=tf.int64)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True).repeat()
    return data.take(num_steps)


def fit(ctx: Any, *, num_steps: int) -> dict[str, Any]:
    """Steps/s of the second epoch of model.fit, whose functions are traced by then."""
    import tensorflow as tf

    with ctx.strategy.scope():
        model = make_model(tf)
    data = make_data(tf, num_steps)
    times: list[float] = []

    class Clock(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

    history = model.fit(data, epochs=3, verbose=0, callbacks=[Clock()])
    return {
        "rate": num_steps / min(times[3] - times[2], times[5] - times[4]),
        "metrics": {name: values[0] for name, values in history.history.items()},
    }


def custom_loop(ctx: Any, *, num_steps: int) -> dict[str, Any]:
    """Steps/s of a loop by TensorFlow's tutorial: one fused all-reduce a step, no metrics."""
    import tensorflow as tf

    strategy = ctx.strategy
    with strategy.scope():
        model = make_model(tf)
        model.optimizer.build(model.trainable_variables)
    iterator = iter(strategy.experimental_distribute_dataset(make_data(tf, -1)))

    def step(batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def one_step(iterator: Any) -> Any:
        return strategy.run(step, args=(next(iterator),))

    rates = []
    for _ in range(3):
        began = time.perf_counter()
        for _ in range(num_steps):
            loss = one_step(iterator)
        float(strategy.experimental_local_results(loss)[0])
        rates.append(num_steps / (time.perf_counter() - began))
    return {"rate": max(rates)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    asked = parser.parse_args()
    here = "tests.benchmarks.steps"
    kinds: dict[str, Any] = {
        "stock tf_keras fit": ("fit", "legacy", STOCK_STEPS, False),
        "raydist tf_keras fit": ("fit", "legacy", asked.steps, True),
        "raydist Keras 3 fit": ("fit", "3", asked.steps, True),
        "custom loop": ("custom_loop", "3", asked.steps, True),
    }
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(asked.rounds):
        for kind, (function, keras, num_steps, is_patched) in kinds.items():
            cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
            [first, _] = run_function(
                f"{here}:{function}", cluster, num_steps=num_steps, job_options={"patch_keras": is_patched}
            )
            rates[kind].append(first.values["rate"])
            print(f"round {number}: {kind}: {first.values['rate']:.0f} steps/s", flush=True)
    _check_metrics(here)
    for name, kind in (("tf_keras", "raydist tf_keras fit"), ("keras_3", "raydist Keras 3 fit")):
        figure(name, rates[kind], "steps/s", against=("stock tf_keras", rates["stock tf_keras fit"]))
        figure(f"{name}_by_hand", rates[kind], "steps/s", against=("custom loop", rates["custom loop"]))


def _check_metrics(here: str) -> None:
    found = {}
    for is_patched in (False, True):
        cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy")
        [first, _] = run_function(
            f"{here}:fit", cluster, num_steps=STOCK_STEPS, job_options={"patch_keras": is_patched}
        )
        found[is_patched] = first.values["metrics"]
    largest = max(abs(found[True][name] - value) for name, value in found[False].items())
    figure("metrics", largest, "largest difference of an epoch metric, stock against patched tf_keras")


if __name__ == "__main__":
    main()
