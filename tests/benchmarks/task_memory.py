"""Memory of the workers of one host while they train: PSS of all that belongs to the run's tasks.

    python -m tests.benchmarks.task_memory [--workers 8]

Starts a Ray of its own, trains a small model with that many workers, and reads /proc/PID/smaps_rollup of the
agents, the fork server and the processes that train. Prints the sum and that of each kind.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import raydist

KINDS = {
    "ray::TaskActor": "agents",
    "raydist::fork-server": "fork server",
    "raydist::": "processes that train",
}


def train(ctx: raydist.TrainContext) -> None:
    """Trains a small model for some seconds."""
    import tensorflow as tf

    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input((32,)), tf.keras.layers.Dense(64), tf.keras.layers.Dense(10)]
        )
        model.compile("sgd", loss="mse")
    data = tf.data.Dataset.from_tensors((tf.ones((64, 32)), tf.zeros((64, 10)))).repeat(2000)
    ctx.fit(model, data, epochs=1)


def pss_mb() -> Counter[str]:
    """Returns the PSS of each kind of process of this machine, in MB."""
    found: Counter[str] = Counter()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
            kind = next((kind for prefix, kind in KINDS.items() if name.startswith(prefix)), None)
            if kind is None:
                continue
            lines = (folder / "smaps_rollup").read_text().splitlines()
        except (OSError, UnicodeDecodeError):  # it has just ended
            continue
        found[kind] += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) // 1024
    return found


def main() -> None:
    """Prints what is found while all workers train."""
    from tests.benchmarks.figures.printing import figure

    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    workers = parser.parse_args().workers
    largest: Counter[str] = Counter()
    done = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.wait(0.5):
            found = pss_mb()
            largest = max(largest, found, key=lambda one: one.total())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory() as storage:
        options = {"address": "local", "resources": {"worker": {"cpus": 0.25}}, "storage": storage}
        result = raydist.run(train, workers=workers, export=False, **options)
    done.set()
    watcher.join()
    print(f"{workers} workers, {result.steps} steps, {time.monotonic() - started_s:.1f} s")
    figure(f"all_{workers}", largest.total() / 1000, "GB")
    for kind, size in largest.items():
        figure(f"{kind.replace(' ', '_')}_{workers}", size / 1000, "GB")


if __name__ == "__main__":
    main()
