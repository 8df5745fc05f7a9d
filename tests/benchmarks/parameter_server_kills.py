"""What SIGKILLs cost a ParameterServer run: the pause, the way back, and whether 20 runs survive one each.

    python -m tests.benchmarks.parameter_server_kills worker [--rounds 3]
    python -m tests.benchmarks.parameter_server_kills any [--runs 20] [--seed 0]
    python -m tests.benchmarks.parameter_server_kills grow [--rounds 3]

`worker` kills worker/1 of a run again and again. It prints the longest time between two closures done
by anybody around the kill (target: under 1 s), and from the kill until the coordinator has the worker
back, in ratio to the time of a bare `import tensorflow` in the same run, as nice as Ray's workers are
(target: under 1.5). `any` starts runs one after the other and kills a random task of each at a random
moment between the start and about the end; all have to succeed with the exact number of steps. `grow` starts
runs of `workers=1:2` where there is room for one worker, and then gives Ray a node for another one, which it
takes away again. It prints the time from the room until the coordinator has the new worker, in ratio to the
time of a bare import as well (target: under 10 s with cores of its own), the steps/s before and with it, and
the longest time without a step around its loss.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import itertools

import raydist

WORKERS, PS = 3, 2
RAY_NICENESS = 15


@raydist.job(params={"log": "", "epochs": 1, "steps": 1000, "wait_ms": 0})
def train(ctx: Any) -> None:
    """Notes in `params["log"]` when each closure is done, and when the coordinator misses a worker."""
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.data.experimental.ops import testing

    log = open(ctx.params["log"], "a", buffering=1)  # as long as the process
    rng = np.random.default_rng(0)
    x, y = rng.random((2048, 64), "float32"), rng.integers(0, 10, 2048)
    with ctx.strategy.scope():
        layers = [tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
        model = tf.keras.Sequential([tf.keras.layers.Input((64,)), *layers])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=tf.keras.optimizers.Adam(1e-3), loss=loss)

    class Done(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            log.write(f"done {time.time()} {batch}\n")

    def watch() -> None:
        workers, missing = ctx.coordinator._cluster.workers, set()
        while True:
            now = {worker.worker_index for worker in workers if worker._is_dead_with_error}
            for index in now ^ missing:
                log.write(f"{'missed' if index in now else 'back'} {time.time()} {index}\n")
            missing = now
            time.sleep(0.005)

    def data(context: tf.distribute.InputContext) -> tf.data.Dataset:
        batches = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(2048, seed=1).batch(32)
        wait_ms = ctx.params["wait_ms"]
        # Few, as those that are done are skipped when the data are divided anew.
        return batches.take(8).apply(testing.sleep(1000 * wait_ms)) if wait_ms else batches

    threading.Thread(target=watch, daemon=True).start()
    ctx.fit(
        model,
        data,
        epochs=ctx.params["epochs"],
        steps_per_epoch=ctx.params["steps"],
        validation_data=lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(256),
        callbacks=[Done()],
    )


def start_ray() -> None:
    import ray

    options = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    ray.init("local", num_cpus=WORKERS + PS + 2, **options)


def submit(
    folder: Path,
    *,
    epochs: int,
    steps: int,
    name: str,
    evaluator: bool,
    workers: int | str = WORKERS,
    wait_ms: int = 0,
) -> Any:
    log = folder / f"{name}.log"
    log.touch()
    return raydist.submit(
        train,
        name=name,
        strategy="parameter_server",
        workers=workers,
        ps=PS,
        evaluator=evaluator,
        storage=str(folder / "runs"),
        params={"log": str(log), "epochs": epochs, "steps": steps, "wait_ms": wait_ms},
    )


def events(log: Path, kind: str) -> list[tuple[float, int]]:
    lines = (line.split() for line in log.read_text().splitlines())
    return [(float(at), int(what)) for found, at, what in lines if found == kind]


def pid_of(handle: Any, task: str) -> int | None:
    tasks = {str(one["task"]): one for one in handle.status().as_dict()["tasks"]}
    return tasks[task]["pid"] if task in tasks else None


def wait(condition: Any, handle: Any, *, timeout_s: float = 120.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        state = handle.status().as_dict()["state"]
        assert state in ("STARTING", "RUNNING"), handle.result(timeout=60).as_dict()
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
    return found


def import_time() -> float:
    began_at_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", f"import os; os.nice({RAY_NICENESS}); import tensorflow"],
        check=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    return time.monotonic() - began_at_s


def backs_beyond(log: Path, number: int) -> list[tuple[float, int]]:
    found = events(log, "back")
    return found if len(found) > number else []


def kill_worker(folder: Path, rounds: int) -> None:
    from tests.benchmarks.figures.printing import figure

    handle = submit(folder, epochs=1, steps=10_000_000, name="worker", evaluator=False)
    log = folder / "worker.log"
    wait(lambda: len(events(log, "done")) > 50, handle)
    print("pause s, back s, import s")
    pauses, backs_s, imports_s = [], [], []
    for number in range(rounds):
        imports_s.append(import_time())
        time.sleep(1)
        pid = wait(lambda: pid_of(handle, "worker/1"), handle)
        killed_at_s = time.time()
        os.kill(pid, signal.SIGKILL)
        backs = wait(functools.partial(backs_beyond, log, number), handle)
        time.sleep(2)
        done = [at for at, _ in events(log, "done") if at > killed_at_s - 1]
        pauses.append(max(after - before for before, after in itertools.pairwise(done)))
        backs_s.append(backs[-1][0] - killed_at_s)
        print(f"{pauses[-1]:.2f}, {backs_s[-1]:.2f}, {imports_s[-1]:.2f}", flush=True)
    status = handle.status().as_dict()
    handle.stop()
    with contextlib.suppress(raydist.TrainingError):  # it was cancelled
        handle.result(timeout=60)
    print(f"attempts {status['attempts']}")
    figure("pause", pauses, "s")
    figure("back", backs_s, "s", against=("import of TensorFlow", imports_s))


def kill_any(folder: Path, runs: int, seed: int) -> None:
    from tests.benchmarks.figures.printing import figure

    rng = random.Random(seed)
    tasks = [
        "chief/0",
        "evaluator/0",
        *(f"worker/{i}" for i in range(WORKERS)),
        *(f"ps/{i}" for i in range(PS)),
    ]
    failures, took_s = 0, 15.0
    for number in range(runs):
        name, task = f"any-{number}", rng.choice(tasks)
        moment = rng.random()
        handle = submit(folder, epochs=4, steps=500, name=name, evaluator=True)
        wait(lambda handle=handle, task=task: pid_of(handle, task), handle)
        began_at_s = time.monotonic()
        delay_s = moment * took_s  # of what the run before took, from the first process on
        while time.monotonic() - began_at_s < delay_s and handle.status().as_dict()["state"] != "SUCCEEDED":
            time.sleep(0.02)
        step = handle.status().as_dict()["steps"]
        try:
            os.kill(pid_of(handle, task), signal.SIGKILL)
            killed = f"killed at step {step}"
        except ProcessLookupError:
            killed = "had ended"
        result = handle.result(timeout=300).as_dict()
        seconds = time.monotonic() - began_at_s
        if result["attempts"] == 1:
            took_s = seconds
        is_good = result["state"] == "SUCCEEDED" and result["steps"] == 2000
        is_good &= result["evaluation"]["step"] == 2000
        failures += not is_good
        print(
            f"{number:2} {task:9} after {delay_s:5.1f} s {killed}: {result['state']} "
            f"{result['steps']} steps, {result['steps_repeated']} repeated, {result['attempts']} attempts, "
            f"{seconds:.0f} s{'' if is_good else json.dumps(result['error'])}",
            flush=True,
        )
    figure("any_failed", failures, f"of {runs} runs without the exact number of steps")


def grow(folder: Path, rounds: int) -> None:
    """Runs in a cluster with a node for the chief, the ps and one worker, whose steps wait for their data."""
    import ray
    from ray.cluster_utils import Cluster

    from tests.benchmarks.figures.printing import figure

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2 + PS, "include_dashboard": False})
    ray.init(cluster.address, log_to_driver=False, logging_level="error")
    taken_s, imports_s, befores, durings, pauses = [], [], [], [], []
    for number in range(rounds):
        name = f"grow-{number}"
        size = {"epochs": 1, "steps": 10_000_000, "workers": "1:2", "wait_ms": 100}
        handle = submit(folder, name=name, evaluator=False, **size)
        log = folder / f"{name}.log"
        wait(lambda log=log: len(events(log, "done")) > 50, handle)
        imports_s.append(import_time())
        befores.append(rate(log, 5))
        node = cluster.add_node(num_cpus=1)
        room_at_s = time.time()
        backs = wait(lambda log=log: events(log, "back"), handle)
        taken_s.append(backs[0][0] - room_at_s)
        time.sleep(2)
        durings.append(rate(log, 5))
        lost_at_s = time.time()
        cluster.remove_node(node)
        time.sleep(10)
        done = [at for at, _ in events(log, "done") if at > lost_at_s - 1]
        pauses.append(max(after - before for before, after in itertools.pairwise([*done, time.time()])))
        status = handle.status().as_dict()
        assert status["attempts"] == 1
        print(
            f"room {taken_s[-1]:.1f} s, import {imports_s[-1]:.1f} s, "
            f"{befores[-1]:.0f} and {durings[-1]:.0f} steps/s, pause {pauses[-1]:.2f} s",
            flush=True,
        )
        handle.stop()
        with contextlib.suppress(raydist.TrainingError):  # it was cancelled
            handle.result(timeout=60)
    figure("room", taken_s, "s", against=("import of TensorFlow", imports_s))
    figure("grown", durings, "steps/s", against=("one worker", befores))
    figure("let_go", pauses, "s")
    ray.shutdown()
    cluster.shutdown()


def rate(log: Path, seconds: float) -> float:
    """Returns the steps/s of the next seconds."""
    before = len(events(log, "done"))
    time.sleep(seconds)
    return (len(events(log, "done")) - before) / seconds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["worker", "any", "grow"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.what == "grow":
        with tempfile.TemporaryDirectory() as folder:
            grow(Path(folder), options.rounds)
        return
    start_ray()
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "worker":
            kill_worker(Path(folder), options.rounds)
        else:
            kill_any(Path(folder), options.runs, options.seed)


if __name__ == "__main__":
    main()
