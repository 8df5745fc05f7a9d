"""Train functions on cached examples, run by tests/training/test_cached.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from raydist import data
from tests.support.data_functions import write_parquet
from tests.support.image_files import png
from tests.support.in_tasks import flat, refusal
from tests.support.inside import progress_of
from tests.support.late import LateModule
from tests.support.train_functions import examples, made

tf = LateModule("tensorflow")

COUNT = 100


def write(folder: Path) -> None:
    """Writes `examples` as Parquet and TFRecord files, and images of two classes."""
    x, y = examples(COUNT)
    for name in ("parquet", "records", "images/a", "images/b"):
        (folder / name).mkdir(parents=True)
    write_parquet(folder / "parquet", COUNT)
    for number, rows in enumerate(np.array_split(np.arange(COUNT), 3)):
        with tf.io.TFRecordWriter(str(folder / "records" / str(number))) as writer:
            for row in rows:
                writer.write(x[row].tobytes() + np.int64(y[row]).tobytes())
    pixels = np.random.default_rng(1).integers(0, 256, (COUNT, 2, 3, 3), np.uint8)
    for number in range(COUNT):
        (folder / "images" / "ab"[number % 2] / f"{number}.png").write_bytes(png(pixels[number]))


def batches(kind: str, folder: str, on_decode: Callable[[], None] = lambda: None) -> data.Batches:
    def counted(record: Any) -> Any:
        on_decode()
        return record

    def parse(record: Any) -> Any:
        record = tf.ensure_shape(tf.numpy_function(counted, [record], tf.string), [])
        x = tf.io.decode_raw(tf.strings.substr(record, 0, 24), tf.float32)
        y = tf.io.decode_raw(tf.strings.substr(record, 24, 8), tf.int64)
        return tf.ensure_shape(x, [6]), tf.ensure_shape(y, [1])[0]

    source: data.Source
    if kind == "records":
        source = data.from_tfrecord(f"{folder}/records", parse=parse)
    elif kind == "images":
        source = data.from_images(f"{folder}/images", size=(1, 2))
    elif kind == "lists":
        source = data.from_parquet(f"{folder}/parquet", columns=["ragged"], label="label", ragged=["ragged"])
    else:
        parquet = data.from_parquet(
            f"{folder}/parquet", features=[f"f{number}" for number in range(6)], label="label"
        )
        source = data.mix([parquet, data.from_tfrecord(f"{folder}/records", parse=parse)], stop="longest")
    return source.batches(global_batch_size=12, seed=5, window_mb=source.num_bytes * 60 / 1e6)


def features(x: Any, y: Any) -> Any:
    """Makes six numbers of any of the examples."""
    if isinstance(x, dict):
        x = x["ragged"].to_tensor(shape=[None, 6])
    return tf.reshape(tf.cast(x, tf.float32), [-1, 6]) / 10, y


def compared(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Returns whether cached batches are those of the source, what was read for them, and what is refused."""
    found: dict[str, Any] = {}
    for kind in ("records", "images", "lists", "mixed"):
        recipe = batches(kind, folder).for_epochs(3)
        plain = _bytes_of(recipe)
        read = _counting_reads(recipe.source)
        for where in ("disk", "memory"):
            read.clear()
            cached = recipe.cached(where, version="1")  # type: ignore[arg-type]
            assert cached.cached() is cached
            is_equal = _bytes_of(cached) == plain
            found[f"{kind} {where}"] = {"is_equal": is_equal, "read": len(read)}
    for kind in ("images", "records"):
        recipe = batches(kind, folder)
        cached = recipe.cached(version="1")
        _damage(cached.source)
        found[f"{kind} damaged"] = {"is_equal": _bytes_of(cached) == _bytes_of(recipe)}
    images = batches("images", folder)
    with mock.patch.dict(os.environ, RAYDIST_CACHE="/proc/none"):
        found["nowhere"] = {"is_equal": _bytes_of(images.cached()) == _bytes_of(images)}

    def with_parse(parse: Any) -> Any:
        return data.from_tfrecord(f"{folder}/records", parse=parse).batches(global_batch_size=4).cached

    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a"], [1]), 0)
    refused: dict[str, Callable[[], Any]] = {
        "it has PyFunc, which runs Python, or depends": batches("records", folder).cached,
        "it has RandomUniform, which": with_parse(lambda record: tf.random.uniform([2])),
        "it has LookupTableFindV2, which": with_parse(table.lookup),
        "examples of the shape (None,)": with_parse(lambda record: tf.io.decode_raw(record, tf.int32)),
        "cached() comes before map()": images.map(lambda x, y: (x, y)).cached,
        "max_gb=0": lambda: images.cached(max_gb=0),
    }
    return {**found, "refused": {message: refusal(call) for message, call in refused.items()}}


def _bytes_of(recipe: data.Batches) -> list[Any]:
    ends = (tf.nest.flatten(batch, expand_composites=True) for batch in recipe)
    return [[one.numpy().tobytes() for one in batch] for batch in ends]


def _damage(source: Any) -> None:
    """Overwrites what is kept of every other example."""
    cache = source._records
    for offset, length, _ in cache._slots.tolist()[::2]:
        os.pwrite(os.open(f"/proc/self/fd/{cache._records_fd}", os.O_WRONLY), bytes(length - 1), offset)


def trained(
    ctx: Any, *, kind: str, folder: str, where: str | None, kill_at: int | None = None
) -> dict[str, Any]:
    """Trains for 3 epochs; returns the weights, and what was decoded and read.

    Args:
      kill_at: The step after which the last worker kills itself.
    """
    decoded: list[int] = []
    recipe = batches(kind, folder, lambda: decoded.append(0))
    # Under parameter servers sources are sent to the workers.
    read = [] if str(ctx.task) == "chief/0" else _counting_reads(recipe.source)
    if where is not None:
        recipe = recipe.cached(where, version="1")  # type: ignore[arg-type]
    model = made(ctx, "adam")

    class Killer(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if ctx.step == kill_at and ctx.task.index == 1:
                os.kill(os.getpid(), signal.SIGKILL)

    ctx.fit(model, recipe.map(features), epochs=3, callbacks=[Killer()])
    return {
        "weights": flat(model),
        "decoded": len(decoded),
        "read": len(read),
        "restored_step": progress_of(ctx).status().restored_step,
    }


def _counting_reads(source: Any) -> list[int]:
    """Has reads of a source, or of those of a mixture, counted in the list."""
    read: list[int] = []
    for one in getattr(source, "sources", (source,)):
        for name in ("take", "read_into"):
            method = getattr(one, name)

            def counted(*args: Any, method: Any = method) -> Any:
                read.append(0)
                return method(*args)

            setattr(one, name, counted)
    return read
