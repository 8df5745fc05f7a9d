"""An embedding of 10 million rows on parameter servers, against one of 10,000 rows, in turn.

    python -m tests.benchmarks.large_embedding [--rows N] [--rounds N] [--keras legacy|3] [--optimizer NAME]

Steps per second of `ctx.fit` with 3 workers and 2 ps, and the memory (PSS) of all tasks. A step looks up 256
rows; what it costs must not grow with the table. With tf_keras the table is cut into shards.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.figures.printing import figure

WORKERS, PS = 3, 2
DIMENSIONS = 16
BATCH_SIZE = 256
SMALL = 10_000


def measure(ctx: Any, *, rows: int, rounds: int, num_steps: int, optimizer: str) -> dict[str, Any]:
    """Runs in the chief; returns the steps/s with each number of rows."""
    import tensorflow as tf

    keras = tf.keras
    rates: dict[str, list[float]] = {}
    models = {}
    for count in (SMALL, rows):
        with ctx.strategy.scope():
            ids = keras.layers.Input((2,), dtype="int64")
            table = keras.layers.Embedding(count, DIMENSIONS)(ids)
            output = keras.layers.Dense(1)(keras.layers.Flatten()(table))
            models[count] = keras.Model(ids, output)
            chosen = keras.optimizers.get({"class_name": optimizer, "config": {"learning_rate": 0.05}})
            models[count].compile(optimizer=chosen, loss="mse")
    for number in range(rounds + 1):
        for count, model in models.items():
            clock = _clock(keras, num_steps)
            ctx.fit(
                model,
                lambda count=count: _batches(count),
                epochs=1,
                steps_per_epoch=num_steps,
                callbacks=[clock],
                verbose=0,
            )
            if number:  # the first one traces and warms up
                rates.setdefault(str(count), []).append(clock.rate)
    return {"rates": rates, "memory": _memory()}


def _batches(count: int) -> Any:
    import tensorflow as tf

    def draw(index: Any) -> Any:
        ids = tf.random.stateless_uniform((BATCH_SIZE, 2), (1, index), maxval=count, dtype=tf.int64)
        return ids, tf.cast(ids[:, :1] % 7, tf.float32)

    return tf.data.Dataset.counter().map(draw).prefetch(4)


def _clock(keras: Any, num_steps: int) -> Any:
    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        began_at_s = rate = 0.0
        first = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if not self.first and batch >= num_steps // 3:
                self.began_at_s, self.first = time.perf_counter(), batch
            elif self.first:
                self.rate = (batch - self.first) / (time.perf_counter() - self.began_at_s)

    return Clock()


def _memory() -> dict[str, float]:
    """Returns the PSS of this task and its siblings, in MB, largest first."""
    import os

    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if parent != os.getppid():
                continue
            lines = (path / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        found["chief" if int(path.name) == os.getpid() else path.name] = kilobytes / 1000
    return found


def main() -> None:
    from tests.support.processes import Cluster, run_function

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--keras", choices=["3", "legacy"], default="legacy")
    parser.add_argument("--optimizer", default="Adagrad")
    options = parser.parse_args()
    [chief] = run_function(
        "tests.benchmarks.large_embedding:measure",
        Cluster(strategy="parameter_server", workers=WORKERS, ps=PS, keras=options.keras),
        rows=options.rows,
        rounds=options.rounds,
        num_steps=options.steps,
        optimizer=options.optimizer,
        job_options={"partitioner": f"fixed_shards:{PS}"} if options.keras == "legacy" else {},
        timeout_s=900,
    )
    rates = {int(count): values for count, values in chief.values["rates"].items()}
    name = (
        f"{'tf_keras' if options.keras == 'legacy' else 'keras_3'}_{options.optimizer.lower()}_{options.rows}"
    )
    figure(name, rates[options.rows], "steps/s", against=(f"{SMALL} rows", rates[SMALL]))
    memory = chief.values["memory"]
    figure(f"{name}_chief", memory.pop("chief"), "MB of the chief (PSS)")
    figure(f"{name}_largest", max(memory.values()), "MB of the largest other task (PSS)")


if __name__ == "__main__":
    main()
