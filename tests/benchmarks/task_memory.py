"""Memory of the workers of one host while they train: PSS of all that belongs to the run's tasks.

    python -m tests.benchmarks.task_memory [--workers 8] [--rounds 1]

Trains a small model with that many workers: in bare processes with TF_CONFIG and as many threads as raydist
gives each, by a loop of steps, as Keras 3 has no `fit` for several workers; then by `ctx.fit` on a Ray of its
own. Reads /proc/PID/smaps_rollup of the bare processes, and of the agents, the fork server and the processes
that train. Prints the largest sum (target: at most 0.5 of the bare processes') and that of each kind.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
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


def train_bare() -> None:
    """Trains until its standard input is closed; TF_CONFIG is in its environment."""
    import tensorflow as tf

    from tests.benchmarks import launch

    threading.Thread(target=lambda: os._exit(len(sys.stdin.read())), daemon=True).start()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer = launch.build(tf)
    iterator = iter(strategy.experimental_distribute_dataset(launch.dataset(tf)))

    @tf.function
    def one_step(iterator):
        return strategy.run(lambda batch: launch.step(tf, model, optimizer, batch), args=(next(iterator),))

    for number in range(10**9):
        loss = one_step(iterator)["loss"]
        if number in (0, 500):
            print(f"step {number}: {float(loss)}", flush=True)


def pss_mb() -> Counter[str]:
    """Returns the PSS of each kind of raydist's processes that this one has started, in MB."""
    from tests.benchmarks.figures.running import descendants

    found: Counter[str] = Counter()
    for folder in (Path(f"/proc/{pid}") for pid in descendants()):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # it has just ended
            name = (folder / "cmdline").read_bytes().split(b"\0")[0].decode()
            kind = next((kind for prefix, kind in KINDS.items() if name.startswith(prefix)), None)
            if kind is not None:
                found[kind] += _pss_mb(folder)
    return found


def _pss_mb(process: Path) -> int:
    lines = (process / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) // 1024


@contextlib.contextmanager
def largest_of(look: Callable[[], Counter[str]]) -> Iterator[Counter[str]]:
    """Looks twice a second; yields what holds the largest sum in the end."""
    largest: Counter[str] = Counter()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.5):
            if (found := look()).total() > largest.total():
                largest.clear()
                largest.update(found)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield largest
    finally:
        done.set()
        watcher.join()


def by_hand(workers: int) -> Counter[str]:
    from tests.support.ray_heads import free_ports

    addresses = [f"127.0.0.1:{port}" for port in free_ports(workers)]
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}
    tasks = []
    for index in range(workers):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        command = [sys.executable, "-m", "tests.benchmarks.task_memory", "--bare"]
        env = {**os.environ, **threads, "TF_CONFIG": json.dumps(task)}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        tasks.append(subprocess.Popen(command, env=env, cwd=Path(__file__).parents[2], text=True, **pipes))

    def look() -> Counter[str]:
        with contextlib.suppress(OSError):
            return Counter(bare=sum(_pss_mb(Path(f"/proc/{task.pid}")) for task in tasks))
        return Counter()

    with largest_of(look) as largest:
        for task in tasks:
            lines = task.stdout.readline(), task.stdout.readline()
            assert all(lines), "a bare process has ended"
        time.sleep(1)
    for task in tasks:
        task.communicate()
    return largest


def by_raydist(workers: int) -> Counter[str]:
    with tempfile.TemporaryDirectory() as storage, largest_of(pss_mb) as largest:
        options = {"address": "local", "resources": {"worker": {"cpus": 0.25}}, "storage": storage}
        result = raydist.run(train, workers=workers, export=False, **options)
    print(f"{workers} workers, {result.steps} steps")
    return largest


def main() -> None:
    """Prints what is found while all workers train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    if options.bare:
        return train_bare()
    from tests.benchmarks.figures.printing import figure
    from tests.benchmarks.figures.running import adopt_orphans

    adopt_orphans()  # the fork server is one
    workers, bare, ours = options.workers, [], []
    for _ in range(options.rounds):
        bare.append(by_hand(workers).total() / 1000)
        ours.append(by_raydist(workers))
        print(f"{bare[-1]:.2f} GB in bare processes, {dict(ours[-1])} MB in raydist's", flush=True)
    against = ("bare processes", bare)
    figure(f"all_{workers}", [one.total() / 1000 for one in ours], "GB", against=against)
    for kind in KINDS.values():
        figure(f"{kind.replace(' ', '_')}_{workers}", [one[kind] / 1000 for one in ours], "GB")
    return None


if __name__ == "__main__":
    main()
