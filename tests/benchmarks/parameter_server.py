"""Steps per second under ParameterServer, one model in four ways, in turn and in one process.

    python -m tests.benchmarks.parameter_server [--rounds N] [--keras 3|legacy]

1. tutorial: TensorFlow's custom loop, one step in each closure (tensorflow.org/tutorials/distribute/
   parameter_server_training), with its accuracy metric.
2. by hand: the same step in a `tf.range` loop of 50 in each closure, as the tutorial advises.
3. ctx.train_steps with the same step.
4. ctx.fit with the same model, loss and metric.

Targets (issue 3): 3 and 4 at least 2 times 1, and at least 0.9 times 2.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

from tests.benchmarks.figures.printing import figure
from tests.support.inside import progress_of, run_of

WORKERS, PS = 3, 2
PACKED = 50
BATCH_SIZE = 32


def measure(ctx: Any, *, rounds: int, num_steps: int) -> dict[str, Any]:
    """Runs in the chief; returns the steps/s of each way, a list of one for each round."""
    import tensorflow as tf

    keras, strategy, coordinator = tf.keras, ctx.strategy, ctx.coordinator

    def make_model() -> Any:
        layers = [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        return keras.Sequential([keras.layers.Input((64,)), *layers])

    with strategy.scope():
        model, optimizer = make_model(), keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
        fitted = make_model()
        fitted.compile(
            optimizer=keras.optimizers.Adam(1e-3),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    rng = np.random.default_rng(0)
    x, y = rng.random((2048, 64), "float32"), rng.integers(0, 10, 2048)

    def data() -> Any:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2048).batch(BATCH_SIZE).prefetch(4)

    def replica_step(batch: Any) -> Any:
        features, labels = batch
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            loss = tf.nn.compute_average_loss(per_example(labels, logits), global_batch_size=BATCH_SIZE)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    @tf.function
    def tutorial(iterator: Any) -> Any:
        losses = strategy.run(replica_step, args=(next(iterator),))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    @tf.function
    def by_hand(iterator: Any, count: Any) -> Any:
        total = 0.0
        for _ in tf.range(count):
            total += strategy.run(replica_step, args=(next(iterator),))
        return total

    iterator = iter(coordinator.create_per_worker_dataset(lambda: data().repeat()))

    def schedule(function: Any, steps_each: int, *arguments: Any) -> None:
        for _ in range(num_steps // steps_each):
            coordinator.schedule(function, args=(iterator, *arguments))
        coordinator.join()

    def clock_of(total: int) -> Any:
        class Clock(keras.callbacks.Callback):
            """Leaves out the start, which traces."""

            began_at_s = ended_at_s = 0.0
            first = last = 0

            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                now = time.perf_counter()
                if not self.first and batch >= total // 2:
                    self.began_at_s, self.first = now, batch
                self.ended_at_s, self.last = now, batch

        return Clock()

    def train_steps() -> float:
        marks: list[tuple[float, int]] = []
        completed = progress_of(ctx).completed

        def note(step: int, **more: Any) -> None:
            marks.append((time.perf_counter(), step))
            completed(step, **more)

        progress_of(ctx).completed = note
        run_of(ctx).reporter.first_step = ctx.step  # whatever ran before has nothing to do with these steps
        ctx.train_steps(
            lambda batch: {"loss": replica_step(batch)}, data, num_steps=2 * num_steps, steps_per_call=PACKED
        )
        progress_of(ctx).completed = completed
        half = marks[len(marks) // 2 :]
        return (half[-1][1] - half[0][1]) / (half[-1][0] - half[0][0])

    def fit() -> float:
        clock = clock_of(2 * num_steps)
        ctx.fit(fitted, data, epochs=1, steps_per_epoch=2 * num_steps, callbacks=[clock])
        return (clock.last - clock.first) / (clock.ended_at_s - clock.began_at_s)

    def timed(function: Any, steps_each: int, *arguments: Any) -> float:
        began_at_s = time.perf_counter()
        schedule(function, steps_each, *arguments)
        return num_steps / (time.perf_counter() - began_at_s)

    count = tf.constant(PACKED)
    schedule(tutorial, num_steps // 12)
    schedule(by_hand, num_steps // 12, count)
    rates: dict[str, list[float]] = {"tutorial": [], "by_hand": [], "train_steps": [], "fit": []}
    for _ in range(rounds):
        rates["tutorial"].append(timed(tutorial, 1))
        rates["by_hand"].append(timed(by_hand, PACKED, count))
        rates["train_steps"].append(train_steps())
        rates["fit"].append(fit())
    return rates


def main() -> None:
    from tests.support.processes import Cluster, run_function

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--keras", choices=["3", "legacy"], default="3")
    options = parser.parse_args()
    [chief] = run_function(
        "tests.benchmarks.parameter_server:measure",
        Cluster(strategy="parameter_server", workers=WORKERS, ps=PS, keras=options.keras),
        rounds=options.rounds,
        num_steps=options.steps,
        timeout_s=900,
    )
    rates = {name: statistics.median(values) for name, values in chief.values.items()}
    print(f"keras {options.keras}, {WORKERS} workers, {PS} ps, median of {options.rounds} rounds")
    for name, rate in rates.items():
        every = " ".join(f"{value:.0f}" for value in chief.values[name])
        ratios = f"{rate / rates['tutorial']:.2f} of tutorial, {rate / rates['by_hand']:.2f} of by hand"
        print(f"  {name:12} {rate:6.0f} steps/s   {ratios}   ({every})")
    for name in ("fit", "train_steps"):
        for other, suffix in (("tutorial", ""), ("by_hand", "_by_hand")):
            figure(name + suffix, chief.values[name], "steps/s", against=(other, chief.values[other]))


if __name__ == "__main__":
    main()
