"""Costs: what reporting takes from training, and what a controller takes from its host meanwhile.

    python -m tests.benchmarks.costs [--seconds 30] [--rounds 2] [reporting|controller ...]

`reporting`: a loop of about 300 steps/s on one device that calls `ctx.report` after each step, and one that
does not, in turn in blocks of 4 s in one task of a real run (target: 1 %). The rows continue to
metrics/*.parquet, TensorBoard's event files and the status that the controller polls. The CPU time of
raydist's threads (uploads, TensorBoard, status, the log) is printed beside it.

`controller`: the CPU time of the process that drives a run whose step takes long, attached and detached
(target: 2 % of one core).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

# Not at the top: tasks import this file without the tests beside it.
sys.path.insert(0, str(Path(__file__).parents[2]))

# About 4 s: what raydist's threads do with a block's reports falls into it.
BLOCK_STEPS = 1200
STEP_S = 1 / 300
WARM_UP_S = 20.0


def cpu_s(pid: int | str, thread: int | None = None) -> float:
    """Returns the CPU time that a process, or one of its threads, has taken so far."""
    path = f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat"
    fields = Path(path).read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_threads() -> dict[str, float]:
    """Returns the CPU time of raydist's threads in this process, by their names."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.name.startswith("raydist-") and thread.native_id is not None:
            found[thread.name] = found.get(thread.name, 0.0) + cpu_s("self", thread.native_id)
    return found


def train(ctx: Any) -> None:
    """Trains in blocks with and without reports, and reports the cost."""
    import tensorflow as tf

    weights = tf.Variable(tf.random.stateless_normal((256, 256), seed=(1, 2)) / 16)

    @tf.function
    def step(count: tf.Tensor) -> tf.Tensor:
        def body(index: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return index + 1, tf.tanh(x @ weights)

        start = tf.ones((64, 256))
        return tf.reduce_mean(tf.while_loop(lambda index, _: index < count, body, (0, start))[1])

    count = tf.constant(calibrated(tf, step))
    done, times = 0, {True: [], False: []}
    began, threads = time.perf_counter(), own_threads()
    while time.perf_counter() - began < ctx.params["seconds"]:
        for is_on in (True, False) if len(times[True]) % 2 else (False, True):
            begin_s = time.perf_counter()
            for _ in range(BLOCK_STEPS):
                loss = float(step(count))
                done += 1
                if is_on:
                    ctx.report({"loss": loss, "accuracy": 1.0 - loss}, step=done)
            times[is_on].append(time.perf_counter() - begin_s)
    wall_s = time.perf_counter() - began
    calls_us = []
    for _ in range(BLOCK_STEPS):
        loss = float(step(count))
        done += 1
        begin_s = time.perf_counter()
        ctx.report({"loss": loss, "accuracy": 1.0 - loss}, step=done)
        calls_us.append(1e6 * (time.perf_counter() - begin_s))
    background_s = {name: spent - threads.get(name, 0.0) for name, spent in own_threads().items()}
    on, off = (statistics.median(times[is_on]) for is_on in (True, False))
    ratios = [a / b for a, b in zip(times[True], times[False], strict=True)]
    for name, spent in background_s.items():
        ctx.report({f"% of CPU time of {name}": 100 * spent / wall_s}, step=done)
    ctx.report(
        {
            "steps_per_s": BLOCK_STEPS / off,
            "% slower with reports": 100 * (on / off - 1),
            "the same, median of pairs": 100 * (statistics.median(ratios) - 1),
            "% of CPU time of raydist's threads, half of the time with reports": 100
            * sum(background_s.values())
            / wall_s,
            "pairs": len(ratios),
            "call_us": statistics.median(calls_us),
        },
        step=done,
    )


def calibrated(tf: Any, step: Any) -> int:
    """Returns how many products a step of `STEP_S` has."""
    count = 8
    while True:
        step(tf.constant(count))
        begin_s = time.perf_counter()
        for _ in range(20):
            float(step(tf.constant(count)))
        took_s = (time.perf_counter() - begin_s) / 20
        if took_s > STEP_S / 2:
            return max(1, round(count * STEP_S / took_s))
        count *= 2


def wait(ctx: Any) -> None:
    """A step that takes long."""
    import tensorflow as tf

    def step(_: Any) -> dict[str, Any]:
        return {"loss": tf.py_function(lambda: (time.sleep(ctx.params["seconds"]), 0.0)[1], [], tf.float32)}

    ctx.train_steps(step, tf.data.Dataset.from_tensors([0.0, 0.0]).repeat(), num_steps=1)


def measure_reporting(seconds: float, rounds: int, folder: str) -> None:
    import raydist
    from raydist.outcome.status import Scope
    from raydist.storage.run_storage import open_run
    from tests.benchmarks.figures.printing import figure
    from tests.support.metric_rows import read_rows

    job = f"{Path(__file__).resolve()}:train"
    found: dict[str, list[float]] = {}
    for number in range(rounds):
        name = f"reporting-{number}"
        raydist.run(job, name=name, storage=folder, address="local", params={"seconds": seconds})
        rows = read_rows(open_run(folder, run=name))
        print(f"reporting: {len(rows)} rows in metrics/*.parquet")
        for row in rows:
            if row.name not in ("loss", "accuracy") and row.scope is Scope.GLOBAL:
                found.setdefault(row.name, []).append(row.value)
    for name, values in found.items():
        print(f"  {name}: {', '.join(f'{value:.2f}' for value in values)}")
    figure("reporting", found["the same, median of pairs"], "% slower")
    figure("reporting_call", found["call_us"], "µs")
    figure("steps", found["steps_per_s"], "steps/s without reports")


def measure_controller(seconds: float, rounds: int, folder: str) -> None:
    import raydist
    from tests.benchmarks.figures.printing import figure
    from tests.support.ray_heads import ray_head

    job = f"{Path(__file__).resolve()}:wait"
    params = {"seconds": (rounds + 2) * seconds + 60}
    with ray_head(num_cpus=4) as head:
        os.environ.update(head.environ)  # its token is in its home
        for is_detached in (False, True):
            how = "detached" if is_detached else "attached"
            run = raydist.submit(
                job,
                name=how,
                storage=folder,
                address=head.address,
                params=params,
                workers=2,
                detach=is_detached,
            )
            pid = await_training(run, Path(folder) / how)
            shares = []
            for _ in range(rounds):
                began_s = cpu_s(pid)
                time.sleep(seconds)
                shares.append(100 * (cpu_s(pid) - began_s) / seconds)
            figure(f"controller_{how}", shares, "% of a core")
            run.stop()


def await_training(run: Any, folder: Path) -> int:
    """Waits until the run trains and its start is behind it; returns the process that drives it."""
    import raydist

    while (found := run.status()).state is not raydist.RunState.RUNNING:
        assert found.error is None, found.error
        time.sleep(0.5)
    time.sleep(WARM_UP_S)
    return int(json.loads((folder / "run.json").read_text())["driver"]["pid"])


MEASURES = {"reporting": measure_reporting, "controller": measure_controller}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    # Up to Python 3.11 argparse looks for the default among the choices.
    parser.add_argument("what", nargs="*", choices=[*MEASURES, []], default=[])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    for what in arguments.what or MEASURES:
        with tempfile.TemporaryDirectory() as folder:
            MEASURES[what](arguments.seconds, arguments.rounds, folder)


if __name__ == "__main__":
    main()
