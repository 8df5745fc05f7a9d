"""Runs the Python snippets of README and guide, each in a namespace of what it takes for granted.

A process of its own, since it imports TensorFlow: `python -m tests.support.snippets FILE` reads `{id: code}`
as JSON and writes `{id: error}` to stdout, where the error is null for a snippet that runs. Training is real,
on one device; what needs a cluster is replaced by stand-ins with the same signatures.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import ray.data
import tensorflow as tf

import raydist
from raydist.entry.request import read_request
from raydist.runs.handle import RunHandle
from raydist.spec.tasks import TaskId

ROOT = Path(__file__).parents[2]
PARAMS = {"epochs": 1, "batch_size": 64, "learning_rate": 1e-3}
NUM_EXAMPLES = 128
RESULT = raydist.RunResult(
    run="snippet",
    state=raydist.RunState.SUCCEEDED,
    storage="/runs/snippet",
    steps=450,
    metrics={"loss": 0.25},
    checkpoint="/runs/snippet/checkpoints/step-450-a0",
)
EVENTS: list[dict[str, Any]] = [
    {"event": "state", "at_s": 1.7e9, "state": "RUNNING", "error": None},
    {"event": "progress", "phase": "training", "step": 1, "metrics": {"loss": 0.5}},
    {"event": "state", "at_s": 1.7e9, "state": "SUCCEEDED", "error": None},
]


class Training:
    """What `ctx.fit` does in a run, on one device: it trains a model for an epoch, and counts its steps."""

    def __init__(self) -> None:
        self.num_fits = 0

    def fit(
        self, model: Any, train_data: Any, y: Any = None, *, epochs: int, callbacks: Any = None, **_: Any
    ) -> Any:
        """Trains on what the snippet gives, of which at most a few batches are taken."""
        assert epochs >= 1
        self.num_fits += 1
        return model.fit(_dataset(train_data, y).take(20), epochs=1, callbacks=callbacks, verbose=0)


def _dataset(data: Any, y: Any) -> Any:
    if isinstance(data, raydist.data.Batches):
        return data.for_epochs(1).dataset()
    if isinstance(data, np.ndarray):
        return tf.data.Dataset.from_tensor_slices((data, y)).batch(32)
    return data() if callable(data) else data


def context(training: Training, params: Mapping[str, Any], folder: Path) -> Any:
    """Returns a TrainContext without other attributes, whose methods take what those of a run take."""
    ctx = mock.create_autospec(raydist.TrainContext, instance=True)
    ctx.strategy = tf.distribute.get_strategy()
    ctx.coordinator = None
    ctx.params = dict(params)
    ctx.task = TaskId.parse("worker/0")
    ctx.is_chief = True
    ctx.num_workers = 1
    ctx.attempt = 0
    ctx.run_name, ctx.storage = RESULT.run, RESULT.storage
    ctx.step = 0
    ctx.output_dir = folder
    ctx.fit.side_effect = training.fit
    ctx.callbacks.return_value = []
    ctx.restore.return_value = None
    ctx.distribute.side_effect = lambda dataset, **_: dataset
    shard = mock.create_autospec(ray.data.DataIterator, instance=True)
    shard.to_tf.side_effect = lambda *_, batch_size, **__: examples().batch(batch_size)
    ctx.dataset.return_value = shard
    return ctx


def examples() -> Any:
    return tf.data.Dataset.from_tensor_slices(arrays())


def arrays() -> tuple[Any, Any]:
    x = np.linspace(0, 1, 2 * NUM_EXAMPLES, dtype="float32").reshape(-1, 2)
    return x, x[:, :1]


def starting(job: Any, **options: Any) -> None:
    """Checks what `raydist.run` and `submit` are given, as they do, and tells the events of a run."""
    on_event = options.pop("on_event", None)
    for name in ("datasets", "check"):
        options.pop(name, None)
    known = {name: options.pop(name, None) for name in ("config", "params")}
    read_request(job, **known, overrides=options, pickle=lambda function: b"")
    for event in EVENTS if on_event else ():
        on_event(event)


@contextmanager
def stand_ins(ctx: Any, folder: Path) -> Iterator[None]:
    """Puts those of a cluster in place; each has the signature of what it stands for."""
    handle = mock.create_autospec(RunHandle, instance=True)
    handle.status.return_value = handle.result.return_value = RESULT
    parquet, images, plan = raydist.data.from_parquet, raydist.data.from_images, raydist.plan
    digits = (np.zeros((NUM_EXAMPLES, 28, 28), "uint8"), np.arange(NUM_EXAMPLES) % 10)

    def local_parquet(uri: Any, **keywords: Any) -> Any:
        assert str(uri).startswith("s3://")
        return parquet(folder / "rows.parquet", **keywords)

    def local_images(uri: Any, **keywords: Any) -> Any:
        assert str(uri).startswith("s3://")
        return images(folder / "images", **keywords)

    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (raydist, "run", lambda *args, **options: starting(*args, **options) or RESULT),
        (raydist, "submit", lambda *args, **options: starting(*args, **options) or handle),
        # Not for a Ray that happens to run here.
        (raydist, "plan", lambda *args, **options: plan(*args, **{"address": "local", **options})),
        (raydist, "attach", lambda *_, **__: handle),
        (raydist, "context", lambda: ctx),
        (raydist.data, "from_parquet", local_parquet),
        (raydist.data, "from_images", local_images),
        (keras.datasets.mnist, "load_data", lambda *_, **__: (digits, digits)),
    ]
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, RAYDIST_CACHE=str(folder / "cache")))
        for owner, name, effect in replaced:
            stand_in = mock.create_autospec(getattr(owner, name), side_effect=effect)
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        yield


def prelude(ctx: Any, folder: Path) -> dict[str, Any]:
    """Returns the names that a snippet may use without making them."""
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = arrays()
    rows = mock.create_autospec(ray.data.Dataset, instance=True)
    rows.map_batches.return_value = rows

    @raydist.job(workers=2)
    def train(ctx: raydist.TrainContext) -> None: ...

    return {
        "__name__": "snippet",
        **{"raydist": raydist, "tf": tf, "keras": keras, "ctx": ctx, "train": train, "model": model},
        **{
            "x": x,
            "y": y,
            "make_dataset": lambda batch_size=32: examples().batch(batch_size),
            "log": io.StringIO(),
        },
        **{"files": [str(folder / "a.tfrecord")], "decode": decode},
        "clean": lambda batch: batch,
        "augment": lambda images, labels: (tf.image.flip_left_right(images), labels),
        "ray": SimpleNamespace(
            data=SimpleNamespace(read_parquet=mock.create_autospec(ray.data.read_parquet, return_value=rows))
        ),
    }


def decode(record: Any) -> Any:
    return tf.strings.length(record)


def write_data(folder: Path) -> None:
    """Writes what snippets read, and the jobs that they name."""
    rng = np.random.default_rng(0)
    columns = {name: rng.random(2048, "float32") for name in ("age", "income", "bought")}
    pyarrow.parquet.write_table(pa.table(columns), folder / "rows.parquet")
    with tf.io.TFRecordWriter(str(folder / "a.tfrecord")) as writer:
        for index in range(600):
            writer.write(bytes(index % 7))
    picture = tf.io.encode_png(tf.zeros((8, 8, 3), tf.uint8)).numpy()
    for name in ("daisy", "rose"):
        (folder / "images" / name).mkdir(parents=True)
        for number in range(NUM_EXAMPLES):
            (folder / "images" / name / f"{number}.png").write_bytes(picture)
    (folder / "jobs").symlink_to(ROOT / "jobs")
    (folder / "job.py").write_text("import raydist\n\n\n@raydist.job\ndef train(ctx): ...\n")
    (folder / "labels.txt").write_text("cat dog\n")
    for name in ("main.py", "train.py"):
        (folder / name).write_text("print('a script')\n")


def run(code: str, folder: Path) -> None:
    """Runs a snippet, and then what it has defined: a job, a callback, the first element of a pipeline."""
    training = Training()
    ctx = context(training, PARAMS, folder)
    names = prelude(ctx, folder)
    known = dict(names)
    with stand_ins(ctx, folder):
        exec(compile(code, "snippet", "exec"), names)
        for name, value in [*names.items()]:
            if value is not known.get(name):
                use(value, names)
    if "ctx.fit(" in code:
        assert training.num_fits == 1


def use(defined: Any, names: Mapping[str, Any]) -> None:
    if isinstance(defined, raydist.Job):
        names["ctx"].params = {**defined.defaults.get("params", {}), "epochs": 1}
        defined(names["ctx"])
    elif isinstance(defined, type) and issubclass(defined, keras.callbacks.Callback):
        x, y = arrays()
        # Of y a thousand times, for a large loss.
        names["model"].fit(x, 1000 * y, epochs=1, callbacks=[defined()], verbose=0)
    elif isinstance(defined, tf.data.Dataset):
        next(iter(defined))


def errors_of(snippets: Mapping[str, str]) -> dict[str, str | None]:
    """Returns what went wrong in each of the snippets; None where nothing did."""
    found: dict[str, str | None] = {}
    with tempfile.TemporaryDirectory(prefix="raydist-snippets-") as folder:
        os.chdir(folder)
        write_data(Path(folder))
        for name, code in snippets.items():
            try:
                run(code, Path(folder))
                found[name] = None
            except Exception:
                found[name] = traceback.format_exc(limit=-3)
        os.chdir("/")
    return found


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        errors = errors_of(json.loads(Path(sys.argv[1]).read_text()))
    print(json.dumps(errors))
