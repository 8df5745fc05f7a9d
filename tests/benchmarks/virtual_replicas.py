"""Virtual replicas: what equal bits cost, against plain multi_worker_mirrored with as many workers.

    python -m tests.benchmarks.virtual_replicas [--rounds 5] [--growth]

Small models (dense, convnet, transformer, LSTM) with `ctx.fit` in float32 on 2 workers, in turn in each
round: plain, and `--virtual-replicas` 2 and 4. Prints milliseconds per step of the second epoch, the ratio
of the medians to plain (target: at most 1.10), what a worker sends in a step (by the loopback's counter, so
with what else the machine sends) and the largest memory of a worker.

With --growth: the dense model and the convnet with K from 1 to 32 on one worker, and with K=8 on 1 to 8
workers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.figures.printing import figure
from tests.support.processes import Cluster, run_function

BATCH = 64
STEPS = {"dense": 400, "convnet": 100, "transformer": 60, "lstm": 60}
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "K=2": {"virtual_replicas": 2},
    "K=4": {"virtual_replicas": 4},
}
NAMES = {"plain": "plain", "K=2": "2", "K=4": "4"}


def make(kind: str, keras: Any) -> tuple[Any, tuple[int, ...]]:
    """Returns a model with 10 outputs, and the shape of an example."""
    layers = keras.layers
    shapes = {"dense": (32,), "convnet": (28, 28, 1), "transformer": (64, 32), "lstm": (64, 32)}
    inputs = keras.Input(shapes[kind])
    x = inputs
    if kind == "dense":
        for _ in range(2):
            x = layers.Dense(64, activation="relu")(x)
    elif kind == "convnet":
        for filters in (16, 32):
            x = layers.Conv2D(filters, 3, activation="relu")(x)
            x = layers.BatchNormalization()(x)
            x = layers.MaxPooling2D()(x)
        x = layers.Dropout(0.2)(layers.Flatten()(x))
    elif kind == "transformer":
        x = layers.Dense(64)(x)
        for _ in range(2):
            x = layers.LayerNormalization()(x + layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x))
            x = layers.LayerNormalization()(x + layers.Dense(64)(layers.Dense(128, activation="gelu")(x)))
        x = layers.GlobalAveragePooling1D()(x)
    else:
        x = layers.LSTM(64)(x)
    return keras.Model(inputs, layers.Dense(10)(x)), shapes[kind]


def train(ctx: Any, *, kind: str) -> dict[str, Any]:
    """Trains two epochs; returns milliseconds a step, bytes a step and the process's largest memory."""
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(0)
    num_steps = STEPS[kind]
    with ctx.strategy.scope():
        model, shape = make(kind, keras)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    x, y = rng.normal(size=(4 * BATCH, *shape)).astype("float32"), rng.integers(0, 10, 4 * BATCH)
    data = (
        tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH, drop_remainder=True).repeat().take(num_steps)
    )
    marks: list[tuple[float, int]] = []

    class Clock(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            marks.append((time.perf_counter(), _sent_bytes()))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            marks.append((time.perf_counter(), _sent_bytes()))

    began = time.perf_counter()
    ctx.fit(model, data, epochs=2, callbacks=[Clock()])
    (began_s, sent), (ended_s, all_sent) = marks[2], marks[3]
    return {
        "ms": (ended_s - began_s) / num_steps * 1e3,
        "first_epoch_s": marks[1][0] - began,
        "bytes": (all_sent - sent) / num_steps,
        "peak_mb": _peak_mb(),
    }


def _sent_bytes() -> int:
    [line] = [one for one in Path("/proc/net/dev").read_text().splitlines() if one.strip().startswith("lo:")]
    return int(line.partition(":")[2].split()[8])


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def run(kind: str, workers: int, options: dict[str, Any]) -> dict[str, float]:
    strategy = "multi_worker_mirrored" if workers > 1 else "one_device"
    cluster = Cluster(strategy=strategy, workers=workers)
    first, *_ = run_function(
        "tests.benchmarks.virtual_replicas:train", cluster, kind=kind, job_options=options, timeout_s=600
    )
    return {**first.values, "bytes": first.values["bytes"] / workers}


def describe(found: dict[str, float]) -> str:
    return (
        f"{found['ms']:.2f} ms a step, {found['bytes'] / 1024:.0f} KiB sent a step and worker, "
        f"{found['peak_mb']:.0f} MB, first epoch {found['first_epoch_s']:.1f} s"
    )


def compare(kinds: list[str], rounds: int) -> None:
    for kind in kinds:
        found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for _ in range(rounds):
            for mode, options in MODES.items():
                found[mode].append(run(kind, 2, options))
        medians = {
            mode: {name: statistics.median(one[name] for one in values) for name in values[0]}
            for mode, values in found.items()
        }
        for mode, median in medians.items():
            print(f"{kind}, {mode}: {describe(median)}", flush=True)
            key, times = f"{kind}_{NAMES[mode]}", {name: [one["ms"] for one in found[name]] for name in MODES}
            figure(key, times[mode], "ms a step", against=("plain", times["plain"]))


def grow(kinds: list[str]) -> None:
    for kind in kinds:
        for num_replicas in (1, 2, 4, 8, 16, 32):
            found = run(kind, 1, {"virtual_replicas": num_replicas})
            print(f"{kind}, K={num_replicas} on one worker: {describe(found)}", flush=True)
            key = f"{kind}_{num_replicas}_on_one"
            figure(key, found["ms"], "ms a step")
            figure(f"{key}_memory", found["peak_mb"], "MB")
            figure(f"{key}_first_epoch", found["first_epoch_s"], "s")
        for workers in (1, 2, 4, 8):
            found = run(kind, workers, {"virtual_replicas": 8})
            print(f"{kind}, K=8 on {workers} workers: {describe(found)}", flush=True)
            figure(f"{kind}_8_on_{workers}", found["ms"], "ms a step")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--models", nargs="+", choices=STEPS)
    arguments = parser.parse_args()
    if arguments.growth:
        grow(arguments.models or ["dense", "convnet"])
    else:
        compare(arguments.models or list(STEPS), arguments.rounds)


if __name__ == "__main__":
    main()
