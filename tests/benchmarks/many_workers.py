"""Many workers on one host: from the call until all of them run.

    python -m tests.benchmarks.many_workers [--workers 16] [--rounds 2]

Starts a Ray of its own. All rounds but the first find TensorFlow imported. Prints the seconds from
`raydist.submit` until every worker runs, and until the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import raydist
from tests.benchmarks.figures.printing import figure
from tests.support.ray_heads import ray_head

SCRIPT = Path(__file__)
# What the first rounds find of TensorFlow.
_ROUNDS = ("cold", "warm")


def train(ctx: raydist.TrainContext) -> None:
    """Trains a small model for a few steps."""
    import tensorflow as tf

    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((32,)), tf.keras.layers.Dense(10)])
        model.compile("sgd", loss="mse")
    data = tf.data.Dataset.from_tensors((tf.ones((64, 32)), tf.zeros((64, 10)))).repeat(200)
    ctx.fit(model, data, epochs=1)


def main() -> None:
    """Prints what each round takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    with ray_head(num_cpus=arguments.workers) as head, tempfile.TemporaryDirectory() as storage:
        os.environ.update(head.environ)
        for number in range(arguments.rounds):
            began_at_s = time.monotonic()
            handle = raydist.submit(
                f"{SCRIPT}:train",
                workers=arguments.workers,
                storage=storage,
                address=head.address,
                name=f"r{number}",
            )
            running_s = None
            while not handle.status().state.is_terminal:
                states = {task.state.name for task in handle.status().tasks}
                if (
                    running_s is None
                    and states == {"RUNNING"}
                    and len(handle.status().tasks) == arguments.workers
                ):
                    running_s = time.monotonic() - began_at_s
                time.sleep(0.05)
            result = handle.result()
            shown = "never seen" if running_s is None else f"{running_s:.1f} s"
            total_s = time.monotonic() - began_at_s
            print(
                f"round {number}: all run after {shown}, {result.state.value} after {total_s:.1f} s",
                flush=True,
            )
            if running_s is not None and number < len(_ROUNDS):
                figure(f"{_ROUNDS[number]}_{arguments.workers}", running_s, "s until all run")


if __name__ == "__main__":
    main()
