"""Checkpoints: what saving 500 MB of state every 20 steps to local storage costs the training.

    python -m tests.benchmarks.checkpoints [--pairs 5] [--batch 128] [--storage DIR]

A dense model of 42 million parameters with Adam, 504 MB of weights and momenta, on one device. In one
process stretches of 20 steps that begin with a save take turns with stretches that do not save; the
time of the former ends only once their upload is done. Prints the seconds of each, and the ratio of
the medians (target: at most 1.10), with how long the training thread was held up by the save itself,
and the same for the process's CPU time, which hardly depends on what else the machine does.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.figures.printing import figure
from tests.support.inside import run_of
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


def train(ctx: Any, *, num_pairs: int, batch: int) -> dict[str, Any]:
    """Returns the seconds of each stretch that saves, of each that does not, and of each copy."""
    import tensorflow as tf

    from raydist.training.checkpointing.checkpoints import TaskCheckpoints

    copies: list[float] = []
    save = TaskCheckpoints.save

    def timed(self: Any, *args: Any, **kwargs: Any) -> None:
        began_at_s = time.perf_counter()
        save(self, *args, **kwargs)
        copies.append(time.perf_counter() - began_at_s)

    TaskCheckpoints.save = timed  # type: ignore[method-assign]
    seconds: dict[bool, list[float]] = {True: [], False: []}
    cpu_seconds: dict[bool, list[float]] = {True: [], False: []}

    class Stretches(tf.keras.callbacks.Callback):
        num_steps, began_at_s, cpu_s, saves = 0, 0.0, 0.0, True

        def on_train_batch_end(self, number: int, logs: Any = None) -> None:
            self.num_steps += 1
            if self.num_steps % EVERY:
                return
            run_of(ctx).checkpoints.finish()
            if self.began_at_s:  # the first stretch traces, and the first save finds memory for its copy
                seconds[self.saves].append(time.perf_counter() - self.began_at_s)
                cpu_seconds[self.saves].append(time.process_time() - self.cpu_s)
            self.saves = not self.saves if self.num_steps > EVERY else False
            if self.num_steps == EVERY or self.saves:
                run_of(ctx).commands.save.set()  # is done right after this callback
            self.began_at_s = time.perf_counter() if self.num_steps > EVERY else 0.0
            self.cpu_s = time.process_time()

    with ctx.strategy.scope():
        model = make_model(tf)
    rng = tf.random.Generator.from_seed(1)
    x, y = rng.normal((batch, 2048)), rng.uniform((batch,), maxval=10, dtype=tf.int64)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    num_steps = (2 + 2 * num_pairs) * EVERY
    ctx.fit(model, data, epochs=1, steps_per_epoch=num_steps, callbacks=[Stretches()])
    state = sum(variable.numpy().nbytes for variable in [*model.variables, *model.optimizer.variables])
    return {
        "saving": seconds[True],
        "not saving": seconds[False],
        "saving, CPU": cpu_seconds[True],
        "not saving, CPU": cpu_seconds[False],
        "copies": copies[1 : 1 + num_pairs],
        "state_bytes": state,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--storage", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.storage) as storage:
        [task] = run_function(
            "tests.benchmarks.checkpoints:train",
            Cluster(),
            timeout_s=3600,
            storage=Path(storage),
            num_pairs=options.pairs,
            batch=options.batch,
            job_options={"checkpoint_every": str(10**9), "keep": 2, "export": False},
        )
    values = task.values
    for name in ("saving", "not saving", "saving, CPU", "not saving, CPU", "copies"):
        print(f"{name}: {', '.join(f'{one:.2f}' for one in values[name])} s")
    figure("state", values["state_bytes"] / 1e6, "MB")
    figure("step", [one / EVERY for one in values["not saving"]], "s")
    figure("time", values["saving"], "s", against=("not saving", values["not saving"]))
    figure("cpu_time", values["saving, CPU"], "s", against=("not saving", values["not saving, CPU"]))


if __name__ == "__main__":
    main()
