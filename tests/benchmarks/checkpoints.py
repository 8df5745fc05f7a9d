"""Checkpoints: what saving 500 MB of state every 20 steps to local storage costs the training.

    python tests/benchmarks/checkpoints.py [--rounds 3] [--steps 120] [--batch 128] [--storage DIR]

A dense model of 42 million parameters with Adam, 504 MB of weights and momenta, on one device. In
each round, in one process after the other: training that saves every 20 steps, and the same training
that does not save. Both time `--steps` steps after the first 20, which trace and, where they save,
find memory for the first copy; the last upload is waited for in the time. Prints seconds and the
ratio of the medians (target: at most 1.10), and where the training thread waited.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.processes import Cluster, run_function

WIDTH = 4096
EVERY = 20


def make_model(tf: Any) -> Any:
    tf.keras.utils.set_random_seed(1)
    dense = tf.keras.layers.Dense
    hidden = [dense(WIDTH, activation="relu") for _ in range(2)]
    model = tf.keras.Sequential([tf.keras.Input((2048,)), *hidden, dense(WIDTH), dense(10)])
    model.compile(
        tf.keras.optimizers.Adam(1e-4), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def train(ctx: Any, *, num_steps: int, batch: int) -> dict[str, Any]:
    import tensorflow as tf

    from raydist.strategies.checkpoints import TaskCheckpoints

    in_save = [0.0]
    save = TaskCheckpoints.save

    def timed(self: Any, *args: Any, **kwargs: Any) -> None:
        began_at_s = time.perf_counter()
        save(self, *args, **kwargs)
        in_save[0] += time.perf_counter() - began_at_s

    TaskCheckpoints.save = timed  # type: ignore[method-assign]
    times: list[float] = []

    class Clock(tf.keras.callbacks.Callback):
        num_steps = 0

        def on_train_batch_end(self, number: int, logs: Any = None) -> None:
            self.num_steps += 1
            if self.num_steps == EVERY + 1:  # the first save is behind it
                ctx.checkpoints.finish()
                in_save[0] = 0.0
                times.append(time.perf_counter())
            if self.num_steps == EVERY + 1 + num_steps:
                ctx.checkpoints.finish()
                times.append(time.perf_counter())

    with ctx.strategy.scope():
        model = make_model(tf)
    rng = tf.random.Generator.from_seed(1)
    x, y = rng.normal((batch, 2048)), rng.uniform((batch,), maxval=10, dtype=tf.int64)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    ctx.fit(model, data, epochs=1, steps_per_epoch=EVERY + 1 + num_steps, callbacks=[Clock()])
    state = sum(variable.numpy().nbytes for variable in [*model.variables, *model.optimizer.variables])
    return {"seconds": times[1] - times[0], "in_save": in_save[0], "state_bytes": state}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--storage", type=Path)
    options = parser.parse_args()
    # One save more than there are steps to, so that the other run has none in its time.
    cadences = {"saves every 20 steps": str(EVERY), "does not save": str(10**9)}
    seconds: dict[str, list[float]] = {name: [] for name in cadences}
    for number in range(options.rounds):
        for name, every in cadences.items():
            with tempfile.TemporaryDirectory(dir=options.storage) as storage:
                [task] = run_function(
                    "tests.benchmarks.checkpoints:train",
                    Cluster(),
                    timeout_s=900,
                    storage=Path(storage),
                    num_steps=options.steps,
                    batch=options.batch,
                    job_options={"checkpoint_every": every, "keep": 2, "export": False},
                )
            values = task.values
            seconds[name].append(values["seconds"])
            print(
                f"round {number}: {name}: {values['seconds']:.1f} s for {options.steps} steps of "
                f"{values['seconds'] / options.steps:.3f} s, {values['in_save']:.2f} s of them in "
                f"{options.steps // EVERY} saves; {values['state_bytes'] / 1e6:.0f} MB of state",
                flush=True,
            )
    median = {name: statistics.median(values) for name, values in seconds.items()}
    saving, not_saving = median.values()
    print(f"medians: {saving:.1f} s saving, {not_saving:.1f} s not saving: ratio {saving / not_saving:.3f}")


if __name__ == "__main__":
    main()
