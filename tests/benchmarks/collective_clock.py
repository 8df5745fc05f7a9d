"""Collective clock: what it costs to measure how long each step waits in collectives.

    python -m tests.benchmarks.collective_clock [--rounds 15] [--steps 100]

2 workers under MultiWorkerMirrored train a small dense model, a few hundred steps/s on two free cores, by one
`tf.function` for each setting: traced with the clock, and without it. Both run in turn in the same processes,
in another order each round. Prints, of the time per step and of the CPU time per step, the medians and the
median of the rounds' ratios with its quartiles (target: at most 1.01), and the time of a read of the CPU
usage, which happens every 2 s. On a busy machine only the CPU time tells.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.figures.printing import figure
from tests.support.processes import Cluster, run_function

BATCH = 64


def steps_in_turn(ctx: Any, *, num_rounds: int, num_steps: int) -> dict[str, Any]:
    """Returns the seconds and CPU seconds per step of each round, with the clock and without it."""
    import tensorflow as tf

    from raydist.training.cluster import collective_clock
    from raydist.training.reporting.host_usage import read_cpu_usage

    strategy, layers = ctx.strategy, tf.keras.layers
    with strategy.scope():
        dense = [layers.Dense(64, activation="relu"), layers.Dense(64, activation="relu"), layers.Dense(10)]
        model = tf.keras.Sequential([tf.keras.Input((32,)), *dense])
        optimizer = tf.keras.optimizers.SGD(0.01)
        optimizer.build(model.trainable_variables)
    x, y = tf.random.normal((BATCH, 32)), tf.random.uniform((BATCH,), maxval=10, dtype=tf.int64)

    def step() -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    def traced() -> Any:
        function = tf.function(lambda: strategy.run(step), autograph=False)
        function()
        return function

    functions = {"with": traced()}
    waited_s = collective_clock.waited_s()
    collective_clock.start(tf.distribute.get_strategy())  # outside of every scope: it has no collectives
    functions["without"] = traced()
    seconds: dict[str, list[float]] = {f"{kind} {name}": [] for kind in ("wall", "cpu") for name in functions}
    for number in range(num_rounds + 1):
        for name in sorted(functions, reverse=number % 2 == 0):
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            for _ in range(num_steps):
                loss = functions[name]()
            float(strategy.experimental_local_results(loss)[0])
            seconds[f"wall {name}"].append((time.perf_counter() - began_s) / num_steps)
            seconds[f"cpu {name}"].append((time.process_time() - began_cpu_s) / num_steps)
    began_s = time.thread_time()
    for _ in range(20):
        read_cpu_usage()
    usage_s = (time.thread_time() - began_s) / 20
    # The first round warms up.
    return {**{name: times[1:] for name, times in seconds.items()}, "usage_s": usage_s, "waited_s": waited_s}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2)
    target = f"tests.benchmarks.{Path(__file__).stem}:steps_in_turn"
    arguments = {"num_rounds": options.rounds, "num_steps": options.steps}
    values = run_function(target, cluster, timeout_s=3600, **arguments)[0].values
    assert values["waited_s"] > 0, "nothing was measured"
    for kind in ("wall", "cpu"):
        times = [values[f"{kind} {name}"] for name in ("with", "without")]
        with_clock, without = ([1000 * one for one in found] for found in times)
        figure(kind, with_clock, "ms a step", against=("without the clock", without))
        shown = ", ".join(f"{1000 * statistics.median(one):.3f}" for one in times)
        low, middle, high = statistics.quantiles(
            [one / other for one, other in zip(*times, strict=True)], n=4
        )
        print(f"{kind} ms/step with, without: {shown}; ratio {middle:.4f} ({low:.4f} to {high:.4f})")
    figure("cpu_usage_read", 1000 * values["usage_s"], "ms of CPU time, every 2 s")


if __name__ == "__main__":
    main()
