"""Random faults over a series of runs: none may be lost, none may have another result.

    python -m tests.benchmarks.faults [--faults 100] [--seed 0]

Each run trains a Keras model with 2 or 3 workers under MultiWorkerMirroredStrategy and saves every 5 steps.
From its start on, one to four faults strike it, each a random time after the one before: SIGKILL, SIGTERM
or SIGSTOP of a random task's process, SIGKILL of an agent or of the fork server, or a flipped byte in the
newest checkpoint followed by a SIGKILL. After each run its state, its steps, its final weights (to 1e-5 of
the undisturbed run's) and its curve (each epoch's loss once) are checked. Prints a line for each run; ends
with 1 if any was lost or wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np

import raydist

EPOCHS, STEPS_PER_EPOCH, SAVED_EVERY = 4, 20, 5
STALL_TIMEOUT_S = 20.0
START_TIMEOUT_S = 90.0  # what a task that is stopped while it starts costs
MOST_FAULTS = 4
KINDS = ("kill", "kill", "kill", "term", "stop", "corrupt", "agent", "server")
# How the command lines of those begin that are not a task's own process.
TITLES = {"agent": b"ray::TaskActor", "server": b"raydist::fork-server"}


@raydist.job(params={"pause_s": 0.05})
def train(ctx: Any) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS_PER_EPOCH * 30, 6)).astype("float32")
    y = (x[:, 0] * x[:, 1] > 0).astype("int64")

    class Pace(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(ctx.params["pause_s"])

    with ctx.strategy.scope():
        layers = [tf.keras.layers.Dense(16, activation="tanh"), tf.keras.layers.Dense(2)]
        model = tf.keras.Sequential([tf.keras.Input((6,)), *layers])
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(tf.keras.optimizers.Adam(0.01), loss=loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=2).batch(30)
    ctx.fit(model, data, epochs=EPOCHS, callbacks=[Pace()])


def options(folder: Path, name: str, workers: int) -> dict[str, Any]:
    return {
        "name": name,
        "workers": workers,
        "storage": str(folder),
        "checkpoint_every": SAVED_EVERY,
        "stall_timeout": STALL_TIMEOUT_S,
        "start_timeout": START_TIMEOUT_S,
        "max_failures": 20,
    }


class Faults:
    """Draws faults and strikes a run with them."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    def strike(self, handle: raydist.RunHandle, number: int, *, span_s: float) -> list[str]:
        """Strikes `number` times at random moments in about `span_s` each; returns what was done."""
        done = []
        for _ in range(number):
            kind, share = self._rng.choice(KINDS), self._rng.random()
            delay_s, pick = self._rng.random() * span_s, self._rng.random()
            if not wait(handle, delay_s):
                break
            if kind == "corrupt":
                done.append(corrupt(handle, share))
                kind = "kill"
            done.append(kill_other(handle, kind, pick) if kind in TITLES else send(handle, kind, pick))
        return done


def wait(handle: raydist.RunHandle, seconds: float) -> bool:
    """Returns whether the run is still running after that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not handle.status().state.is_terminal:
        time.sleep(0.02)
    return not handle.status().state.is_terminal


def send(handle: raydist.RunHandle, kind: str, pick: float) -> str:
    numbers = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
    while not (tasks := [task for task in handle.status().tasks if task.pid is not None]):
        if not wait(handle, 0.02):
            return f"too late for {kind}"
    task = tasks[int(pick * len(tasks))]
    try:
        os.kill(task.pid or 0, numbers[kind])
    except ProcessLookupError:
        return f"{task.task} was gone before {kind}"
    return f"{kind} {task.task} at {task.state.value.lower()} {handle.status().steps}"


def kill_other(handle: raydist.RunHandle, kind: str, pick: float) -> str:
    """Kills an agent, or a fork server, of this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(TITLES[kind]):
                found.append(int(path.parent.name))
    if not found:
        return f"no {kind} was there"
    with contextlib.suppress(ProcessLookupError):
        os.kill(found[int(pick * len(found))], signal.SIGKILL)
    return f"kill {kind} at {handle.status().steps}"


def corrupt(handle: raydist.RunHandle, share: float) -> str:
    found = Path(handle.status().storage, "checkpoints").glob("step-*")
    # Nobody trains again what has ended with a whole checkpoint.
    whole = (path for path in found if not path.name.startswith(f"step-{EPOCHS * STEPS_PER_EPOCH}-"))
    folders = sorted(whole, key=os.path.getmtime)
    files = sorted(folders[-1].iterdir()) if folders else []
    if not files:
        return "nothing to corrupt"
    path = files[int(share * len(files))]
    with path.open("r+b") as file:
        content = file.read()
        file.seek(len(content) // 2)
        file.write(bytes([content[len(content) // 2] ^ 1]))
    return f"flip a byte of {path.parent.name}/{path.name}"


def weights_of(run: raydist.RunResult) -> list[np.ndarray]:
    content = Path(run.checkpoint or "", "variables.npz").read_bytes()
    with np.load(io.BytesIO(content)) as arrays:
        return [arrays[key] for key in sorted(arrays)]


def curve_problems(run: raydist.RunResult) -> list[str]:
    """Returns what is wrong with the losses that `raydist metrics` shows."""
    from raydist.storage.run_storage import open_run
    from tests.support.metric_rows import merge_rows, read_rows

    path = Path(run.storage)
    table = merge_rows(read_rows(open_run(str(path.parent), run=path.name)))
    rows = [row for row in table if row.name == "loss" and row.scope.value == "global"]
    wanted = [STEPS_PER_EPOCH * (epoch + 1) for epoch in range(EPOCHS)]
    counts = Counter(row.step for row in rows)
    return [] if counts == Counter(wanted) else [f"curve {dict(counts)}"]


def problems_of(run: raydist.RunResult, expected: list[np.ndarray]) -> list[str]:
    if run.state.value != "SUCCEEDED" or run.steps != EPOCHS * STEPS_PER_EPOCH:
        return [f"{run.state.value} after {run.steps} steps: {run.error and run.error.message}"]
    pairs = zip(weights_of(run), expected, strict=True)
    difference = max(float(np.max(np.abs(ours - theirs), initial=0.0)) for ours, theirs in pairs)
    return [*([f"weights differ by {difference:g}"] if difference > 1e-5 else []), *curve_problems(run)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    import ray

    from tests.benchmarks.figures.printing import figure

    ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="error")
    rng, faults, num_done, num_bad, number = random.Random(arguments.seed), Faults(arguments.seed), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="raydist-faults-") as name:
        folder = Path(name)
        undisturbed = functools.cache(
            lambda workers: weights_of(raydist.run(train, **options(folder, f"calm-{workers}", workers)))
        )
        while num_done < arguments.faults:
            workers = rng.choice((2, 3))
            expected = undisturbed(workers)
            handle = raydist.submit(train, **options(folder, f"run-{number}", workers))
            began_at_s = time.monotonic()
            num_faults = min(rng.randint(1, MOST_FAULTS), arguments.faults - num_done)
            struck = faults.strike(handle, num_faults, span_s=20.0)
            num_done += sum(what.startswith(("kill ", "term ", "stop ")) for what in struck)
            try:
                result = handle.result(timeout=600)
            except raydist.RaydistError as error:
                result = error.result
            problems = problems_of(result, expected)
            num_bad += bool(problems)
            seconds = time.monotonic() - began_at_s
            print(
                f"run {number}, {workers} workers: {'; '.join(struck) or 'was quicker'}: {result.attempts} "
                f"attempts, {seconds:.0f} s: {'; '.join(problems) or 'as undisturbed'}",
                flush=True,
            )
            number += 1
    figure(f"seed_{arguments.seed}_faults", num_done, "faults")
    figure(f"seed_{arguments.seed}_runs", number, "runs")
    figure(f"seed_{arguments.seed}_lost", num_bad, "runs lost or wrong")
    sys.exit(bool(num_bad))


if __name__ == "__main__":
    main()
