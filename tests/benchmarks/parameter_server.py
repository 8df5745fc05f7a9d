"""Steps per second under ParameterServer, one model in four ways, in turn and in one process.

    python -m tests.benchmarks.parameter_server [--rounds N] [--steps N] [--keras 3|legacy]

Each way runs the same number of steps, and is timed over the second half of them, so tracing is left out.
With --keras legacy the figures are named `fit_legacy` and so on.

1. tutorial: TensorFlow's custom loop, one step in each closure (tensorflow.org/tutorials/distribute/
   parameter_server_training), with its accuracy metric.
2. by hand: the same step in a `tf.range` loop of 50 in each closure, as the tutorial advises.
3. ctx.train_steps with the same step.
4. ctx.fit with the same model, loss and metric.

Target: 3 and 4 at least 3 times 1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.benchmarks.figures.printing import figure
from tests.support.inside import progress_of, run_of

WORKERS, PS = 3, 2
PACKED = 50
BATCH_SIZE = 32


class Half:
    """Times the second half of a training's steps; the first half traces, for all contenders.

    A closure that is under way when the first half ends has done some of its steps, so steps are counted by
    the optimizer's own variable.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._began: tuple[int, float] | None = None
        self._ended = (0, 0.0)

    def completed(self, done: int, *, of: int) -> None:
        """Takes how many steps are done, of all."""
        if self._began is None and done >= of // 2:
            self._began = self._now()
        elif done == of:
            self._ended = self._now()

    @property
    def rate(self) -> float:
        """Steps/s."""
        assert self._began is not None
        (first, began_at_s), (last, ended_at_s) = self._began, self._ended
        return (last - first) / (ended_at_s - began_at_s)

    def _now(self) -> tuple[int, float]:
        return int(self._optimizer.iterations.numpy()), time.perf_counter()


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

    def in_closures(function: Any, steps_each: int, *arguments: Any) -> float:
        half = Half(optimizer)
        for done in (num_steps // 2, num_steps):
            for _ in range(num_steps // 2 // steps_each):
                coordinator.schedule(function, args=(iterator, *arguments))
            coordinator.join()  # as at the end of an epoch
            half.completed(done, of=num_steps)
        return half.rate

    def train_steps() -> float:
        half, progress = Half(optimizer), progress_of(ctx)
        completed, before = progress.completed, ctx.step

        def note(step: int, **more: Any) -> None:
            completed(step, **more)
            half.completed(step - before, of=num_steps)

        progress.completed = note
        run_of(ctx).reporter.first_step = before  # whatever ran before has nothing to do with these steps
        ctx.train_steps(
            lambda batch: {"loss": replica_step(batch)}, data, num_steps=num_steps, steps_per_call=PACKED
        )
        progress.completed = completed
        return half.rate

    def fit() -> float:
        half = Half(fitted.optimizer)

        class Clock(keras.callbacks.Callback):
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                half.completed(batch + 1, of=num_steps)

        ctx.fit(fitted, data, epochs=1, steps_per_epoch=num_steps, callbacks=[Clock()], verbose=0)
        return half.rate

    count = tf.constant(PACKED)
    rates: dict[str, list[float]] = {"tutorial": [], "by_hand": [], "train_steps": [], "fit": []}
    for _ in range(rounds):
        rates["tutorial"].append(in_closures(tutorial, 1))
        rates["by_hand"].append(in_closures(by_hand, PACKED, count))
        rates["train_steps"].append(train_steps())
        rates["fit"].append(fit())
    return rates


def main() -> None:
    from tests.support.processes import Cluster, run_function

    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--keras", choices=["3", "legacy"], default="3")
    options = parser.parse_args()
    [chief] = run_function(
        "tests.benchmarks.parameter_server:measure",
        Cluster(strategy="parameter_server", workers=WORKERS, ps=PS, keras=options.keras),
        rounds=options.rounds,
        num_steps=options.steps,
        timeout_s=900,
    )
    rates = chief.values
    print(f"keras {options.keras}, {WORKERS} workers, {PS} ps, median of {options.rounds} rounds")
    for name, values in rates.items():
        against = (f"{_ratios(values, rates[other])} of {other}" for other in ("tutorial", "by_hand"))
        rounds = " ".join(f"{value:.0f}" for value in values)
        print(f"  {name:12} {statistics.median(values):6.0f} steps/s   {', '.join(against)}   ({rounds})")
    of_keras = "_legacy" if options.keras == "legacy" else ""
    for name in ("fit", "train_steps"):
        for other, suffix in (("tutorial", ""), ("by_hand", "_by_hand")):
            figure(name + suffix + of_keras, rates[name], "steps/s", against=(other, rates[other]))


def _ratios(values: Sequence[float], others: Sequence[float]) -> str:
    """Returns the median of the rounds' ratios, with the smallest and the largest."""
    ratios = [one / other for one, other in zip(values, others, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


if __name__ == "__main__":
    main()
