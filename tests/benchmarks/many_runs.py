"""Many runs one after another on one Ray: what is left behind.

    python -m tests.benchmarks.many_runs [--runs 50]

Each run is a real one: 2 workers, TensorFlow, MultiWorkerMirrored, a checkpoint; each fifth one fails
in user code. Afterwards prints what there is that was not there before the first run: actors,
placement groups, Ray worker processes beyond the idle ones that Ray keeps, listening ports, files in
the temporary folder, threads and open files of the driver. Exits with 1 when anything is.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.figures.printing import figure
from tests.support.leaks import Snapshot
from tests.support.ray_heads import ray_head

SCRIPT = Path(__file__)


def train(ctx: Any) -> None:
    """Two steps of a small model, as a job."""
    import tensorflow as tf

    with ctx.strategy.scope():
        weight = tf.Variable(1.0)
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build([weight])
    ctx.restore(weight=weight, optimizer=optimizer)

    def step(batch: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weight * batch) / ctx.strategy.num_replicas_in_sync
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return {"loss": loss}

    ctx.train_steps(step, tf.data.Dataset.from_tensor_slices(tf.ones(8)).batch(4), num_steps=2)
    if ctx.run_name.endswith("-fails"):
        raise ValueError("as planned")


def outside() -> dict[str, frozenset[str]]:
    """What the driver's host holds besides Ray's own bookkeeping."""
    names = frozenset(path.name for path in Path(tempfile.gettempdir()).iterdir())
    return {
        "busy Ray workers": frozenset(_busy_workers()),
        "listening ports": frozenset(_listening_ports()),
        "temporary files": frozenset(name for name in names if not name.startswith("rd-")),
        "open files": frozenset([str(len(os.listdir("/proc/self/fd")))]),
        "threads": frozenset([str(threading.active_count())]),
    }


def _busy_workers() -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if title.startswith("ray::") and "IDLE" not in title and "Agent" not in title:
            found.append(f"{process.name} {title[:60]}")
    return found


def _listening_ports() -> set[str]:
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A":  # LISTEN
                ports.add(str(int(columns[1].rpartition(":")[2], 16)))
    return ports


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    num_runs = parser.parse_args().runs
    with ray_head() as head, tempfile.TemporaryDirectory(prefix="rd-") as storage:
        os.environ.update(head.environ)
        import ray

        import raydist
        from raydist.runtime.cluster.connection import connect

        with connect(head.address):
            _run(raydist, storage, "warm", head.address)  # what Ray itself keeps is there after one run
            time.sleep(5)
            before, before_outside = Snapshot.take(), outside()
            began = time.monotonic()
            for number in range(num_runs):
                _run(raydist, storage, f"run-{number}{'-fails' if number % 5 == 4 else ''}", head.address)
            took_s = time.monotonic() - began
            time.sleep(5)
            left = {name: sorted(found) for name, found in Snapshot.take().beyond(before).items()}
            after = outside()
            # Ray opens ports for its idle workers and closes them when it ends these; count what is ours.
            for name in ("busy Ray workers", "temporary files"):
                if after[name] - before_outside[name]:
                    left[name] = sorted(after[name] - before_outside[name])
            figure("each", took_s / num_runs, "s")
            for name in ("open files", "threads"):
                print(f"driver's {name}: {min(before_outside[name])} before, {min(after[name])} after")
            new_ports = after["listening ports"] - before_outside["listening ports"]
            owned = {port for port in new_ports if not _belongs_to_ray(port)}
            if owned:
                left["listening ports"] = sorted(owned)
            assert ray.is_initialized()
    figure("left", sum(map(len, left.values())), "things left behind")
    if left:
        print(f"left behind: {left}")
    return 1 if left else 0


def _belongs_to_ray(port: str) -> bool:
    """Whether an idle Ray worker or Ray itself listens there."""
    wanted = f"{int(port):04X}"
    inodes = {
        line.split()[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[1].endswith(f":{wanted}")
    }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            sockets = {os.readlink(fd) for fd in (process / "fd").iterdir()}
            title = (process / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(f"socket:[{inode}]" in sockets for inode in inodes):
            return "ray" in title and ("IDLE" in title or "ray::" not in title)
    return True  # closed in between


def _run(raydist: Any, storage: str, name: str, address: str) -> None:
    result = raydist.run(
        f"{SCRIPT}:train", name=name, workers=2, address=address, storage=storage, max_failures=0, check=False
    )
    expected = "FAILED" if name.endswith("-fails") else "SUCCEEDED"
    assert result.state.name == expected, result.as_dict()


if __name__ == "__main__":
    sys.exit(main())
