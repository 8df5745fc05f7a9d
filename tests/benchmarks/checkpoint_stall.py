"""How long training stands still for a checkpoint of 500 MB, against Keras's BackupAndRestore.

    python -m tests.benchmarks.checkpoint_stall [--rounds 3] [--saves 3] [--width 4096] [--storage DIR]

The model of checkpoints.py, 42 million parameters with Adam (`--width 8704`: 2 GB of state), saved every 20
steps on one device: by `keras.callbacks.BackupAndRestore(save_freq=20)` in plain Keras and by raydist, in
turn. Prints how long each save holds the training thread up, for raydist also by how much longer 20 steps
take that are trained during the upload, and how long reading the state back takes. Target: 0.1 of
BackupAndRestore.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.checkpoints import EVERY, WIDTH, make_model
from tests.benchmarks.figures.printing import figure
from tests.support.processes import Cluster, run_function

_BATCH = 128
_CHECKOUT = Path(__file__).parents[2]


def back_up(folder: Path, num_saves: int, width: int) -> None:
    """Trains by plain Keras, then once more to restore; prints the seconds that saving and restoring take."""
    import tensorflow as tf

    class Timed(tf.keras.callbacks.BackupAndRestore):
        def __init__(self, *, stops: bool) -> None:
            super().__init__(str(folder / "backup"), save_freq=EVERY, delete_checkpoint=False)
            self.stalls: list[float] = []
            self.restore_s, self._stops = 0.0, stops

        def on_train_begin(self, logs: Any = None) -> None:
            began_at_s = time.perf_counter()
            super().on_train_begin(logs)
            self.restore_s = time.perf_counter() - began_at_s
            self.model.stop_training = self._stops

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            began_at_s = time.perf_counter()
            super().on_train_batch_end(batch, logs)
            if (batch + 1) % EVERY == 0:
                self.stalls.append(time.perf_counter() - began_at_s)

    rng = tf.random.Generator.from_seed(1)
    x, y = rng.normal((_BATCH, 2048)), rng.uniform((_BATCH,), maxval=10, dtype=tf.int64)
    data, steps = tf.data.Dataset.from_tensors((x, y)).repeat(), EVERY * (num_saves + 1)
    model, saving = make_model(tf, width), Timed(stops=False)
    model.fit(data, epochs=1, steps_per_epoch=steps, callbacks=[saving], verbose=0)
    again, restoring = make_model(tf, width), Timed(stops=True)
    again.optimizer.build(again.trainable_variables)
    again.fit(data, epochs=2, steps_per_epoch=1, callbacks=[restoring], verbose=0)
    size = sum(path.stat().st_size for path in (folder / "backup").rglob("*") if path.is_file())
    # The first save finds memory, as for raydist.
    print(json.dumps({"stalls": saving.stalls[1:], "restore_s": restoring.restore_s, "bytes": size}))


def restore(ctx: Any, *, width: int) -> dict[str, Any]:
    """Returns the seconds until a new attempt has the state of the checkpoint that is there."""
    import tensorflow as tf

    from raydist.training.checkpointing.checkpoints import TaskCheckpoints

    spent: list[float] = []

    def timed(name: str) -> None:
        original = getattr(TaskCheckpoints, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            began_at_s = time.perf_counter()
            try:
                return original(self, *args, **kwargs)
            finally:
                spent.append(time.perf_counter() - began_at_s)

        setattr(TaskCheckpoints, name, call)

    timed("newest")
    timed("restore")
    with ctx.strategy.scope():
        model = make_model(tf, width)
    rng = tf.random.Generator.from_seed(1)
    x, y = rng.normal((_BATCH, 2048)), rng.uniform((_BATCH,), maxval=10, dtype=tf.int64)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    ctx.fit(model, data, epochs=1, steps_per_epoch=10**6, callbacks=[_stop_at_once(tf)])
    return {"restore_s": sum(spent), "step": int(model.optimizer.iterations.numpy())}


def _stop_at_once(tf: Any) -> Any:
    class Stop(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_training = True

    return Stop()


def by_raydist(folder: Path, num_saves: int, width: int) -> dict[str, Any]:
    job = {"checkpoint_every": str(10**9), "keep": 2, "export": False}
    arguments = {"timeout_s": 3600, "storage": folder, "width": width, "job_options": job}
    [task] = run_function(
        "tests.benchmarks.checkpoints:train", Cluster(), num_pairs=num_saves, batch=_BATCH, **arguments
    )
    values = task.values
    excess = statistics.median(values["saving"]) - statistics.median(values["not saving"])
    [again] = run_function("tests.benchmarks.checkpoint_stall:restore", Cluster(), attempt=1, **arguments)
    assert again.values["step"] > EVERY
    return {"stalls": values["copies"], "excess_s": excess, "restore_s": again.values["restore_s"]}


def by_keras(folder: Path, num_saves: int, width: int) -> dict[str, Any]:
    child = [sys.executable, "-m", "tests.benchmarks.checkpoint_stall", "--child"]
    output = subprocess.run(
        [*child, str(folder), str(num_saves), str(width)],
        cwd=_CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
        text=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--saves", type=int, default=3)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--storage", type=Path)
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        return back_up(Path(options.child[0]), *map(int, options.child[1:]))
    found: dict[str, list[float]] = {}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.storage) as name:
            sizes = options.saves, options.width
            keras, ours = by_keras(Path(name), *sizes), by_raydist(Path(name) / "runs", *sizes)
        for key, values in (
            ("keras", keras["stalls"]),
            ("raydist", ours["stalls"]),
            ("excess", [ours["excess_s"]]),
            ("keras, restore", [keras["restore_s"]]),
            ("raydist, restore", [ours["restore_s"]]),
        ):
            found.setdefault(key, []).extend(values)
        print(f"round {number}: {keras['bytes'] / 1e6:.0f} MB, {keras}, {ours}", flush=True)
    own = "_large" if options.width != WIDTH else ""
    figure(f"save{own}", found["raydist"], "s", against=("BackupAndRestore", found["keras"]))
    figure(f"save_and_upload{own}", found["excess"], "s", against=("BackupAndRestore", found["keras"]))
    figure(
        f"restore{own}", found["raydist, restore"], "s", against=("BackupAndRestore", found["keras, restore"])
    )
    return None


if __name__ == "__main__":
    main()
