"""Recovery from the SIGKILL of a worker, against Ray Train's TensorflowTrainer with max_failures=1.

    python -m tests.benchmarks.recovery [--rounds 3] [--working-dir DIR]

Both train the same model with 2 workers under MultiWorkerMirroredStrategy, in turn, on one running Ray,
and save every 20 steps. Worker 1 is killed after 50 steps; taken is the time from then to the end of the
first step of the new processes. Prints each round, and the ratio of the medians (target: at most 0.65).

raydist ships the working directory to the tasks, this folder unless told otherwise; Ray Train ships no files.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import raydist

if TYPE_CHECKING:
    from tests.support.ray_heads import RayHead

SCRIPT = Path(__file__)
NUM_STEPS, KILLED_AFTER, SAVED_EVERY = 300, 50, 20


def build(tf: Any) -> tuple[Any, Any]:
    model = tf.keras.Sequential([tf.keras.Input((32,)), tf.keras.layers.Dense(64), tf.keras.layers.Dense(10)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def dataset(tf: Any) -> Any:
    return tf.data.Dataset.from_tensors((tf.ones((64, 32)), tf.zeros((64,), tf.int64))).repeat()


def step(tf: Any, model: Any, optimizer: Any, log: Log, batch: Any) -> dict[str, Any]:
    x, y = batch
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=64)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    logged = tf.numpy_function(
        log.done, [optimizer.iterations.value, model.trainable_variables[0].value], tf.int64
    )
    with tf.control_dependencies([logged]):
        return {"loss": tf.identity(loss)}


class Log:
    """A line for each step done: the worker, its process, the step, the time, its weights' checksum."""

    def __init__(self, path: str, worker: int) -> None:
        self._file = open(path, "a", buffering=1)  # as long as the process
        self._worker = worker

    def done(self, step: Any, weights: Any) -> Any:
        checksum = zlib.crc32(weights.tobytes())
        self._file.write(f"{self._worker} {os.getpid()} {step} {time.time()} {checksum:08x}\n")
        time.sleep(0.02)  # a step of a model that does something
        return step


@raydist.job(params={"log": "", "steps": NUM_STEPS})
def train_ours(ctx: Any) -> None:
    """The job of raydist."""
    import tensorflow as tf

    log = Log(ctx.params["log"], ctx.task.index)
    with ctx.strategy.scope():
        model, optimizer = build(tf)
    ctx.restore(model=model, optimizer=optimizer)
    ctx.train_steps(
        lambda batch: step(tf, model, optimizer, log, batch),
        dataset(tf),
        num_steps=ctx.params["steps"],
        steps_per_call=1,
    )


def train_theirs(config: dict[str, Any]) -> None:
    """The train loop of Ray Train, as its documentation writes one."""
    import tensorflow as tf
    from ray import train

    rank = train.get_context().get_world_rank()
    log = Log(config["log"], rank)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model, optimizer = build(tf)
        done = tf.Variable(0, dtype=tf.int64)
    saved = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved.restore(tf.train.latest_checkpoint(folder))
    iterator = iter(strategy.experimental_distribute_dataset(dataset(tf)))

    @tf.function
    def one_step(iterator: Any) -> Any:
        per_replica = strategy.run(
            lambda batch: step(tf, model, optimizer, log, batch)["loss"], args=(next(iterator),)
        )
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    for number in range(int(done.numpy()), config["steps"]):
        loss = float(one_step(iterator))
        if (number + 1) % SAVED_EVERY == 0:
            done.assign(number + 1)
            with tempfile.TemporaryDirectory() as folder:
                saved.save(f"{folder}/ckpt")
                theirs = train.Checkpoint.from_directory(folder) if rank == 0 else None
                train.report({"loss": loss}, checkpoint=theirs)


def drive_ours(
    address: str, log: str, storage: str, working_dir: str, steps: int, failures: int, workers: int
) -> None:
    raydist.run(
        f"{SCRIPT}:train_ours",
        workers=workers,
        address=address,
        storage=storage,
        working_dir=working_dir,
        params={"log": log, "steps": steps},
        checkpoint_every=SAVED_EVERY,
        max_failures=failures,
    )


def drive_theirs(
    address: str, log: str, storage: str, _: str, steps: int, failures: int, workers: int
) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    ray.init(address=address, log_to_driver=False)
    TensorflowTrainer(
        train_theirs,
        train_loop_config={"log": log, "steps": steps},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=failures)),
    ).fit()


DRIVERS = {"raydist": drive_ours, "ray-train": drive_theirs}


def steps_in(log: Path) -> list[tuple[int, int, float]]:
    """Returns worker, process and time of each step done."""
    lines = (line.split() for line in log.read_text().splitlines()) if log.exists() else ()
    return [(int(worker), int(pid), float(at_s)) for worker, pid, _, at_s, _ in lines]


def started(
    who: str,
    head: RayHead,
    log: Path,
    working_dir: Path,
    *,
    steps: int = NUM_STEPS,
    failures: int = 1,
    workers: int = 2,
) -> subprocess.Popen[str]:
    """Starts a training whose runs are stored beside `log`, in a process of its own."""
    told = [head.address, log, log.parent / "runs", working_dir, steps, failures, workers]
    arguments = [sys.executable, str(SCRIPT), "--driver", who, *map(str, told)]
    return subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=head.environ
    )


def recovery_of(who: str, head: RayHead, folder: Path, working_dir: Path) -> float:
    log = folder / f"{who}-{time.time_ns()}.log"
    with started(who, head, log, working_dir) as driver:
        wait(lambda: len(steps_in(log)) >= 2 * KILLED_AFTER, driver)
        victim = next(pid for worker, pid, _ in steps_in(log) if worker == 1)
        before = {pid for _, pid, _ in steps_in(log)}
        killed_at_s = time.time()
        os.kill(victim, signal.SIGKILL)
        wait(functools.partial(has_new, log, before), driver)
        _, errors = driver.communicate(timeout=300)
        assert driver.returncode == 0, errors[-3000:]
    return min(at_s for _, pid, at_s in steps_in(log) if pid not in before) - killed_at_s


def has_new(log: Path, before: set[int]) -> bool:
    return any(pid not in before for _, pid, _ in steps_in(log))


def wait(condition: Any, driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while not condition():
        assert driver.poll() is None, driver.communicate()[1][-3000:]
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--working-dir", type=Path, default=SCRIPT.parent)
    parser.add_argument("--driver", nargs=8)
    options = parser.parse_args()
    if options.driver:
        who, *told, steps, failures, workers = options.driver
        return DRIVERS[who](*told, int(steps), int(failures), int(workers))
    if importlib.util.find_spec("pydantic") is None:
        sys.exit("Ray Train needs pydantic, which `python -m tests.benchmarks recovery` installs for its run")
    # Not in the tasks, which have this folder only.
    from tests.benchmarks.figures.printing import figure
    from tests.support.ray_heads import ray_head

    taken: dict[str, list[float]] = {who: [] for who in DRIVERS}
    with tempfile.TemporaryDirectory(prefix="rd-") as folder, ray_head(num_cpus=4) as head:
        for number in range(options.rounds):
            for who, seconds in taken.items():
                seconds.append(recovery_of(who, head, Path(folder), options.working_dir.resolve()))
            shown = ", ".join(f"{who} {seconds[-1]:.2f} s" for who, seconds in taken.items())
            print(f"round {number}: {shown}", flush=True)
    figure("killed_worker", taken["raydist"], "s", against=("Ray Train", taken["ray-train"]))
    files = [
        one for one in options.working_dir.rglob("*") if one.is_file() and "__pycache__" not in one.parts
    ]
    figure("files", len(files), "files that raydist ships")


if __name__ == "__main__":
    main()
