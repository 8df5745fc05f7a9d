"""Checkpoints: what saving 500 MB of state every 20 steps to local storage costs the training.

    python -m tests.benchmarks.checkpoints [--pairs 5] [--batch 128] [--width 4096] [--every 20]
        [--storage DIR]

A dense model of 42 million parameters with Adam, 504 MB of weights and momenta, on one device; with
`--width 8704` it is 2 GB. In one process stretches of 20 steps that begin with a save take turns with
stretches that do not save; the time of the former ends only once their upload is done. Prints the seconds of
each, and the ratio of the medians (target: at most 1.10), with how long the training thread was held up by
the save itself, and the same for the process's CPU time, which hardly depends on what else the machine does.
With another width the third kind of stretch begins with `dd conv=fsync` of as many bytes into the same
folder. Then it also prints the steps between a save and its commit, relative to the others, and how fast
a checkpoint is written beside the training, relative to dd beside the training (targets: 1.05, 0.1 s, 0.8).
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.figures.printing import figure
from tests.support.inside import run_of
from tests.support.processes import Cluster, run_function

WIDTH = 4096
EVERY = 20
_BLOCK_BYTES = 8 * 1024 * 1024


def make_model(tf: Any, width: int = WIDTH) -> Any:
    tf.keras.utils.set_random_seed(1)
    dense = tf.keras.layers.Dense
    hidden = [dense(width, activation="relu") for _ in range(2)]
    model = tf.keras.Sequential([tf.keras.Input((2048,)), *hidden, dense(width), dense(10)])
    model.compile(
        tf.keras.optimizers.Adam(1e-4), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    return model


def dd(folder: str, num_bytes: int) -> subprocess.Popen[bytes]:
    """Starts to write as many bytes, and to wait until the disk has them, as for a checkpoint."""
    size = [f"bs={_BLOCK_BYTES}", f"count={math.ceil(num_bytes / _BLOCK_BYTES)}"]
    command = ["dd", "if=/dev/zero", f"of={folder}/by-dd", *size, "conv=fsync", "status=none"]
    return subprocess.Popen(command)


def train(
    ctx: Any, *, num_pairs: int, batch: int, width: int = WIDTH, every: int = EVERY, folder: str = ""
) -> dict[str, Any]:
    """Returns the seconds of each stretch by its kind, and of the steps, copies and writings in them.

    Args:
      folder: Where dd writes, at the beginning of each third stretch; empty for no dd.
    """
    import tensorflow as tf

    from raydist.training.checkpointing.checkpoints import TaskCheckpoints

    kinds = ["not saving", "saving", *(["dd"] if folder else [])]
    copies: list[float] = []
    writes: dict[str, list[float]] = {kind: [] for kind in kinds}
    steps: dict[str, list[float]] = {kind: [] for kind in kinds}
    ends_at_s, saved_at_s = 0.0, 0.0  # of what is written now
    save, commit = TaskCheckpoints.save, TaskCheckpoints._commit

    def timed_save(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal saved_at_s, ends_at_s
        saved_at_s, ends_at_s = time.perf_counter(), math.inf
        save(self, *args, **kwargs)
        copies.append(time.perf_counter() - saved_at_s)
        saved_at_s = time.perf_counter()

    def timed_commit(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal ends_at_s
        commit(self, *args, **kwargs)
        ends_at_s = time.perf_counter()
        writes["saving"].append(ends_at_s - saved_at_s)

    def wait_for_dd(began_at_s: float, process: subprocess.Popen[bytes]) -> None:
        nonlocal ends_at_s
        assert process.wait() == 0
        ends_at_s = time.perf_counter()
        writes["dd"].append(ends_at_s - began_at_s)
        Path(folder, "by-dd").unlink()

    TaskCheckpoints.save, TaskCheckpoints._commit = timed_save, timed_commit  # type: ignore[method-assign]
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu_seconds: dict[str, list[float]] = {kind: [] for kind in kinds}

    class Stretches(tf.keras.callbacks.Callback):
        num_steps, kind, began_at_s, cpu_s, step_at_s = 0, "", 0.0, 0.0, 0.0
        writer: threading.Thread | None = None

        def on_train_batch_begin(self, number: int, logs: Any = None) -> None:
            self.step_at_s = time.perf_counter()

        def on_train_batch_end(self, number: int, logs: Any = None) -> None:
            self.num_steps += 1
            if self.kind and (self.kind == "not saving" or self.step_at_s < ends_at_s):
                steps[self.kind].append(time.perf_counter() - self.step_at_s)
            if self.num_steps % every:
                return
            run_of(ctx).checkpoints.finish()
            if self.writer is not None:
                self.writer.join()
                self.writer = None
            if self.kind:  # the first stretch traces, and the first save finds memory for its copy
                seconds[self.kind].append(time.perf_counter() - self.began_at_s)
                cpu_seconds[self.kind].append(time.process_time() - self.cpu_s)
            number = self.num_steps // every - 2
            self.kind = kinds[number % len(kinds)] if number >= 0 else ""
            if self.kind in ("", "saving"):
                run_of(ctx).commands.save.set()  # is done right after this callback
            if self.kind == "dd":
                self._start_dd()
            self.began_at_s, self.cpu_s = time.perf_counter(), time.process_time()

        def _start_dd(self) -> None:
            nonlocal ends_at_s
            ends_at_s = math.inf
            arguments = time.perf_counter(), dd(folder, state_bytes())
            self.writer = threading.Thread(target=wait_for_dd, args=arguments)
            self.writer.start()

    def state_bytes() -> int:
        variables = [*model.variables, *model.optimizer.variables]
        return sum(math.prod(one.shape) * tf.as_dtype(one.dtype).size for one in variables)

    with ctx.strategy.scope():
        model = make_model(tf, width)
    rng = tf.random.Generator.from_seed(1)
    x, y = rng.normal((batch, 2048)), rng.uniform((batch,), maxval=10, dtype=tf.int64)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    num_steps = (2 + len(kinds) * num_pairs) * every
    ctx.fit(model, data, epochs=1, steps_per_epoch=num_steps, callbacks=[Stretches()])
    return {
        **seconds,
        **{f"{kind}, CPU": values for kind, values in cpu_seconds.items()},
        **{f"{kind}, steps": values for kind, values in steps.items()},
        **{f"{kind}, writing": values[-num_pairs:] for kind, values in writes.items() if values},
        "copies": copies[-num_pairs:],
        "first copy": copies[:1],
        "state_bytes": state_bytes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--storage", type=Path)
    options = parser.parse_args()
    is_large = options.width != WIDTH
    with tempfile.TemporaryDirectory(dir=options.storage) as storage:
        [task] = run_function(
            "tests.benchmarks.checkpoints:train",
            Cluster(),
            timeout_s=3600,
            storage=Path(storage),
            num_pairs=options.pairs,
            batch=options.batch,
            width=options.width,
            every=options.every,
            folder=storage if is_large else "",
            job_options={"checkpoint_every": str(10**9), "keep": 2, "export": False},
        )
    values = task.values
    megabytes = values.pop("state_bytes") / 1e6
    for name, found in values.items():
        print(f"{name}: {', '.join(f'{one:.2f}' for one in found)} s")
    own = "_large" if is_large else ""
    figure(f"state{own}", megabytes, "MB")
    figure(f"step{own}", [one / options.every for one in values["not saving"]], "s")
    figure(f"time{own}", values["saving"], "s", against=("not saving", values["not saving"]))
    figure(f"cpu_time{own}", values["saving, CPU"], "s", against=("not saving", values["not saving, CPU"]))
    if is_large:
        figure("blocked_large", values["copies"], "s")
        figure("first_blocked_large", values["first copy"], "s")
        steps = ("not saving", values["not saving, steps"])
        figure("step_while_saving_large", values["saving, steps"], "s", against=steps)
        figure("step_beside_dd_large", values["dd, steps"], "s", against=steps)
        speeds = {kind: [megabytes / one for one in values[f"{kind}, writing"]] for kind in ("saving", "dd")}
        figure("speed_large", speeds["saving"], "MB/s", against=("dd conv=fsync", speeds["dd"]))


if __name__ == "__main__":
    main()
