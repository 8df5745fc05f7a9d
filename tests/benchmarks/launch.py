"""Launch: from calling raydist.run to the end of the first step, against the same two processes by hand.

    python -m tests.benchmarks.launch [--rounds 5] [--cold]

Both train the same model with 2 workers under MultiWorkerMirroredStrategy, in turn, on one running
Ray. Prints each round, and the ratio of the medians. With --cold nothing that a round has imported is kept
for the next (target: at most 0.85); without it the second round and later ones find it (0.30).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

SCRIPT = Path(__file__)


def train(ctx: object) -> None:
    """One step of a small model, as a job."""
    import tensorflow as tf

    with ctx.strategy.scope():
        model, optimizer = build(tf)
    ctx.train_steps(lambda batch: step(tf, model, optimizer, batch), dataset(tf), num_steps=1)


def build(tf):
    model = tf.keras.Sequential(
        [tf.keras.Input((32,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(10)]
    )
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def dataset(tf):
    return tf.data.Dataset.from_tensors((tf.ones((64, 32)), tf.zeros((64,), tf.int64))).repeat()


def step(tf, model, optimizer, batch):
    x, y = batch
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=64)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return {"loss": tf.reduce_mean(losses)}


def task_by_hand() -> None:
    """One of the two bare processes; TF_CONFIG is in its environment."""
    import tensorflow as tf

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer = build(tf)
    iterator = iter(strategy.experimental_distribute_dataset(dataset(tf)))

    @tf.function
    def one_step(iterator):
        return strategy.run(lambda batch: step(tf, model, optimizer, batch), args=(next(iterator),))

    float(one_step(iterator)["loss"])
    print(f"FIRST_STEP {time.time()}", flush=True)
    time.sleep(1)  # a task that leaves looks like a death to its peer


def by_hand() -> float:
    ports = [_free_port() for _ in range(2)]
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    started_at_s = time.time()
    tasks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), "--task"],
            env={
                **os.environ,
                "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
                # What raydist gives each task, so that both have the same threads.
                "TF_NUM_INTRAOP_THREADS": "1",
                "TF_NUM_INTEROP_THREADS": "2",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for index in range(2)
    ]
    outputs = [task.communicate()[0] for task in tasks]
    # As raydist's timings have it: of the first task; they differ by one message.
    return min(float(output.split("FIRST_STEP ")[1].split()[0]) for output in outputs) - started_at_s


def driver(address: str, storage: str, keep_warm: str) -> None:
    """A fresh driver, as a user's script is one: only `import raydist` is behind it."""
    import raydist

    started_at_s = time.time()
    result = raydist.run(
        f"{SCRIPT}:train",
        workers=2,
        address=address,
        storage=storage,
        working_dir=str(SCRIPT.parent),
        keep_warm=keep_warm,
    )
    print(
        json.dumps(
            {
                "first_step_s": result.timings["first_step"],
                "timings": dict(result.timings),
                "total": time.time() - started_at_s,
            }
        )
    )


def by_raydist(address: str, storage: str, *, keep_warm: str) -> dict[str, float]:
    output = subprocess.run(
        [sys.executable, str(SCRIPT), "--driver", address, storage, keep_warm],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    return json.loads(output.splitlines()[-1])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", action="store_true")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--driver", nargs=3)
    arguments = parser.parse_args()
    if arguments.task:
        return task_by_hand()
    if arguments.driver:
        return driver(*arguments.driver)
    if arguments.rounds < 2 and not arguments.cold:
        parser.error("--rounds is 1, but only the second round finds what is kept warm")
    # Not at the top: tasks import this file without the tests beside it.
    from tests.benchmarks.figures.printing import figure
    from tests.benchmarks.figures.running import adopt_orphans
    from tests.benchmarks.task_memory import pss_mb

    adopt_orphans()  # the fork server is one
    port = _free_port()
    ray = Path(sys.executable).parent / "ray"
    with tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp") as folder:
        head = subprocess.Popen(
            [
                str(ray),
                "start",
                "--head",
                "--block",
                f"--port={port}",
                "--num-cpus=2",
                f"--temp-dir={folder}",
                "--include-dashboard=false",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            time.sleep(8)
            hand, ours, phases = [], [], {}
            for number in range(arguments.rounds):
                hand.append(by_hand())
                keep_warm = "0" if arguments.cold else "10m"
                found = by_raydist(f"127.0.0.1:{port}", f"{folder}/runs", keep_warm=keep_warm)
                ours.append(found["first_step_s"])
                for name, value in found["timings"].items():
                    if value is not None:
                        phases.setdefault(name, []).append(value)
                shown = {name: round(values[-1], 2) for name, values in phases.items()}
                print(
                    f"round {number}: by hand {hand[-1]:.2f} s, raydist {ours[-1]:.2f} s {shown}", flush=True
                )
            kept_mb = pss_mb()["fork server"]
        finally:
            head.terminate()
            head.wait()
    if arguments.cold:
        return figure("cold", ours, "s", against=("by hand", hand))
    # The first round finds nothing that is kept.
    figure("warm", ours[1:], "s", against=("by hand", hand[1:]))
    for name, values in phases.items():
        figure(f"warm_{name}", values[1:], "s since the call")
    figure("kept_warm", kept_mb, "MB")
    return None


if __name__ == "__main__":
    main()
