"""What raydist.data makes of sources in TensorFlow; run by tests/data/test_pipelines.py."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorflow as tf

from raydist import data
from raydist.errors import RaydistError
from tests.support.image_files import png
from tests.support.numbered_source import NumberedSource


def _plain(value: Any) -> Any:
    """Returns a batch as JSON: of each tensor its type, its static shape and its values."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    found = value.numpy()
    if found.dtype == object:
        return [value.dtype.name, [one.decode() for one in found.reshape(-1)]]
    return [value.dtype.name, found.tolist()]


def _error_of(batches: Any) -> str:
    try:
        for _ in batches:
            pass
    except RaydistError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def checked(ctx: Any, *, folder: str) -> dict[str, Any]:
    """Returns what all functions of this module find; the folder is theirs."""
    return {
        "parts": parts(),
        "tensors": tensors(folder),
        "records_and_images": records_and_images(folder),
        "uneven_records": uneven_records(folder),
        "bad_parquet": bad_parquet(folder),
    }


def parts() -> dict[str, Any]:
    """Returns what differs between the global batches and those of several input pipelines, put together."""
    wrong = []
    sources = {"groups": NumberedSource([5, 9, 1, 7, 8, 6]), "arrays": data.from_arrays(np.arange(36))}
    for name, source in sources.items():
        for drop_remainder in (False, True):
            batches = source.batches(
                global_batch_size=11, seed=3, epochs=2, drop_remainder=drop_remainder, window_mb=1e-4
            )
            whole = [batch.numpy().reshape(-1).tolist() for batch in batches]
            for pipelines, local in ((1, 2), (2, 1), (3, 1), (5, 1), (2, 2), (4, 1)):
                found: list[list[int]] = [[] for _ in whole]
                for number in range(pipelines):
                    context = tf.distribute.InputContext(pipelines, number, pipelines * local)
                    elements = [one.numpy().reshape(-1).tolist() for one in batches.dataset(context)]
                    for place, element in enumerate(elements):
                        found[place // local] += element
                if found != whole:
                    wrong.append([name, drop_remainder, pipelines, local])
            for start in (0, 1, 4, len(whole) - 1, len(whole)):
                rest = [one.numpy().reshape(-1).tolist() for one in batches.dataset(start_step=start)]
                if rest != whole[start:]:
                    wrong.append([name, drop_remainder, "start", start])
    source = NumberedSource([6] * 6)
    for _ in source.batches(global_batch_size=4, seed=1, epochs=1):
        pass
    rows_read = sum(piece.num_rows for piece in source.read_pieces)
    even = data.from_arrays(np.arange(36)).batches(global_batch_size=12)
    return {
        "wrong": wrong,
        "static": even.dataset().element_spec.shape.as_list(),
        "beyond": _error_of_call(lambda: batches.dataset(start_step=len(whole) + 1)),
        "negative": _error_of_call(lambda: batches.dataset(start_step=-1)),
        "threads": _data_threads(),
        "rows_read": rows_read,
        "is_autotuned": even.dataset().options().autotune.enabled,
        "by default": {
            "len": len(even),
            "iterated": sum(1 for _ in even),
            "dataset": int(even.dataset().cardinality()),
            "beyond": _error_of_call(lambda: even.dataset(start_step=4)),
        },
        "two epochs": [len(even.for_epochs(2)), sum(1 for _ in even.for_epochs(2))],
    }


def _error_of_call(call: Any) -> str:
    try:
        call()
    except RaydistError as error:
        return str(error)
    return "no error"


def _data_threads() -> int:
    """Returns how many threads still read ahead, after a moment."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        alive = [thread for thread in threading.enumerate() if thread.name == "raydist-data"]
        if not alive:
            return 0
        time.sleep(0.05)
    return len(alive)


def tensors(folder: str) -> dict[str, Any]:
    """Returns the batches of each kind of source."""
    import pyarrow.parquet as pq

    x = {"unicode": np.array(["ä", "bb"]), "bytes": np.array([b"x", b"yy"]), "truth": np.array([True, False])}
    mixed = np.array(["ü", b"z"], object)
    arrays = data.from_arrays(x, (mixed, np.array([0.5, 1.5], "float16")))
    columns = {
        "t": ["ö", "b"],
        "large": pa.array(["l", "m"], pa.large_string()),
        "raw": [b"r", b"s"],
        "kind": pa.array(["k", "l"]).dictionary_encode(),
        "v": [[1, 2], [3, 4]],
        "truth": [True, False],
        "half": pa.array([0.5, 1.5], pa.float16()),
        "y": [7, 8],
    }
    pq.write_table(pa.table(columns), f"{folder}/all.parquet")
    parquet = data.from_parquet(f"{folder}/all.parquet", label="y")
    options: dict[str, Any] = {"global_batch_size": 2, "shuffle": False, "epochs": 1}
    doubled = arrays.batches(**options).map(lambda x, y: (x["truth"], y[1] * 2)).map(lambda a, b: (b, a))
    of_dict = data.from_arrays({"a": np.arange(2)}).batches(**options).map(lambda batch: batch["a"] + 1)
    return {
        "arrays": _plain(next(iter(arrays.batches(**options)))),
        "parquet": _plain(next(iter(parquet.batches(**options)))),
        "maps": _plain(next(iter(doubled))),
        "map of a dict": _plain(next(iter(of_dict.prefetch(3)))),
        "cached": _plain(next(iter(parquet.batches(**options).cached("memory"))))
        == _plain(next(iter(parquet.batches(**options)))),
    }


def records_and_images(folder: str) -> dict[str, Any]:
    """Returns what TFRecord and image files become, and the errors of bad ones."""
    path = f"{folder}/records"
    with tf.io.TFRecordWriter(path) as writer:
        for number in range(6):
            feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            example = tf.train.Example(features=tf.train.Features(feature={"n": feature}))
            writer.write(example.SerializeToString())

    def parse(record: Any) -> Any:
        n = tf.io.parse_single_example(record, {"n": tf.io.FixedLenFeature([], tf.int64)})["n"]
        if n % 2 == 0:  # autograph makes a tf.cond of it
            n = n * 10
        return {"n": n, "pair": tf.stack([n, n + 1])}, tf.strings.as_string(n)

    options: dict[str, Any] = {"global_batch_size": 4, "shuffle": False}
    records = data.from_tfrecord(path, parse=parse).batches(**options, epochs=2).cached("memory")
    iterator = iter(records)
    first = [_plain(next(iterator)) for _ in range(2)]
    Path(path).unlink()
    second = [_plain(next(iterator)) for _ in range(2)]

    with tf.io.TFRecordWriter(path) as writer:
        for number in range(5):
            writer.write(np.full(3, number, np.int32).tobytes())
    # Its static shape is [None], and of the last batch the second and third pipeline have nothing.
    raw = data.from_tfrecord(path, parse=lambda record: (tf.io.decode_raw(record, tf.int32), record))
    batches = raw.batches(global_batch_size=4, shuffle=False, epochs=1)
    shapes = [
        [batch[0].shape[0] for batch in batches.dataset(tf.distribute.InputContext(3, number, 3))]
        for number in range(3)
    ]

    images = Path(folder) / "images"
    for label, name in enumerate(["ant", "bee"]):
        (images / name).mkdir(parents=True)
        pixels = np.full((4, 6, 3), 100 + label, np.uint8)
        (images / name / "0.png").write_bytes(png(pixels))
    pixels_and_labels = data.from_images(str(images)).batches(global_batch_size=2, shuffle=False, epochs=1)
    alike = _plain(next(iter(pixels_and_labels)))
    small = data.from_images(str(images), size=(2, 3)).batches(global_batch_size=2, shuffle=False, epochs=1)
    (images / "bee" / "1.png").write_bytes(png(np.zeros((5, 6, 3), np.uint8)))
    unequal = data.from_images(str(images)).batches(global_batch_size=3, epochs=1)
    resized = data.from_images(str(images), size=(2, 3), channels=1).batches(global_batch_size=3, epochs=1)
    return {
        "records": first,
        "records again": second == first,
        "parts of records": shapes,
        "images": [np.unique(alike[0][1]).tolist(), np.shape(alike[0][1]), alike[0][0], alike[1]],
        "small": [np.shape(_plain(next(iter(small)))[0][1]), small.dataset().element_spec[0].shape.as_list()],
        "unequal": _error_of(unequal),
        "gray": np.shape(_plain(next(iter(resized)))[0][1]),
        "stripes": resized_stripes(f"{folder}/stripes"),
    }


def resized_stripes(folder: str) -> dict[str, bool]:
    """Returns whether images of one and of another size are resized as Keras and TensorFlow do it."""
    stripes = np.arange(30 * 20 * 3).reshape(30, 20, 3) * 37 % 256
    images = {"a/0.png": stripes.astype(np.uint8), "b/0.png": stripes[:12, :8].astype(np.uint8)}
    for name, pixels in images.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True)
        path.write_bytes(png(pixels))
    keras = tf.keras.utils.image_dataset_from_directory(
        folder, image_size=(12, 8), batch_size=2, shuffle=False, verbose=False
    )
    filtered = [tf.image.resize(pixels, (12, 8), antialias=True) for pixels in images.values()]
    expected = {False: next(iter(keras))[0], True: tf.stack(filtered)}
    found = {}
    for antialias, wanted in expected.items():
        source = data.from_images(folder, size=(12, 8), antialias=antialias)
        [(ours, _)] = source.batches(global_batch_size=2, shuffle=False).dataset()
        found[f"antialias={antialias}"] = bool(np.array_equal(ours, np.round(wanted)))
    found["differ"] = not np.array_equal(expected[False], expected[True])
    return found


def uneven_records(folder: str) -> dict[str, Any]:
    """Returns what is told of records that do not become tensors of one shape."""
    uneven = Path(folder) / "uneven"
    uneven.mkdir()
    for name, counts in {"a": [3, 3, 3], "b": [3, 4]}.items():
        with tf.io.TFRecordWriter(str(uneven / name)) as writer:
            for count in counts:
                writer.write(np.arange(count, dtype=np.int32).tobytes())

    def numbers(record: Any) -> Any:
        return tf.io.decode_raw(record, tf.int32)

    def of_other_rank(record: Any) -> Any:
        is_long = tf.size(numbers(record)) > 3
        return tf.zeros(tf.cond(is_long, lambda: tf.constant([3, 3]), lambda: tf.constant([3])))

    functions: dict[str, Any] = {
        "ragged dense": numbers,
        "other rank": of_other_rank,
        "sparse": lambda record: {"x": tf.sparse.from_dense(tf.cast(numbers(record), tf.int64))},
        "ragged": lambda record: tf.RaggedTensor.from_tensor([tf.cast(numbers(record), tf.int64)]),
        "none": lambda record: (record, None),
    }
    errors = {
        name: _error_of(
            data.from_tfrecord(uneven, parse=parse).batches(global_batch_size=5, epochs=1, shuffle=False)
        )
        for name, parse in functions.items()
    }
    even = data.from_tfrecord(uneven, parse=lambda record: (numbers(record)[:3], record))
    x, records = next(iter(even.batches(global_batch_size=5, epochs=1)))
    return {**errors, "even": [x.shape.as_list(), records.shape.as_list()]}


def bad_parquet(folder: str) -> dict[str, Any]:
    """Returns what is told of bad Parquet files that are found to be bad only when they are read."""
    import pyarrow.parquet as pq

    options: dict[str, Any] = {"global_batch_size": 4, "epochs": 1, "window_mb": 1e-4}
    errors = {}
    for name, column in {
        "null": pa.array([1, 2, 3, 4, 5, 6, 7, 8, 9, None]),
        "ragged": pa.array([[1, 2]] * 9 + [[1]]),
    }.items():
        path = f"{folder}/{name}.parquet"
        pq.write_table(pa.table({"c": column}), path, row_group_size=4, write_statistics=False)
        errors[name] = _error_of(data.from_parquet(path).batches(**options))
    path = f"{folder}/gone.parquet"
    pq.write_table(pa.table({"c": list(range(40))}), path, row_group_size=4)
    batches = data.from_parquet(path).batches(**options)
    Path(path).unlink()
    errors["gone"] = _error_of(batches)
    return {"errors": errors, "threads": _data_threads()}
