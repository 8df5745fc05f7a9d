"""TFRecord files and folders of pictures, against tf.data's own best pipelines on the same files.

    python -m tests.benchmarks.records [--rounds 5] [--records 100000] [--pictures 2000]

Records of 32 floats and a label in eight files, and JPEG pictures of 160 x 160 in ten classes, read in a
graph, as steps of `fit` read them: by raydist.data, which shuffles in an order that can be continued, and by
tf.data. For records that is an interleave of shuffled files, shuffle, batch, a map of whole batches and
prefetch, all with AUTOTUNE, and the same with a map of single records, as tf.data's guide writes it. For
pictures it is Keras's `image_dataset_from_directory`, which does not antialias (raydist does unless told
otherwise), and a pipeline by hand that does. In turn in each round, three epochs each by one iterator, which
is faster than an iterator for each epoch, as `fit` makes of tf.data's. The pipeline's start is included.
Prints the rates (target: at least 1.0 of tf.data's).
"""

from __future__ import annotations

import argparse
import functools
import re
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from raydist import data
from tests.benchmarks.figures.printing import figure

_NUM_FILES, _NUM_CLASSES, _SIDE = 8, 10, 160
_BATCH, _PICTURES = 1024, 32
_SHUFFLED = 10 * _BATCH
_EPOCHS = 3
_SPEC = {"x": tf.io.FixedLenFeature([32], tf.float32), "y": tf.io.FixedLenFeature([], tf.int64)}
_AUTO = tf.data.AUTOTUNE


def write_records(folder: Path, num_records: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(_NUM_FILES):
        with tf.io.TFRecordWriter(str(folder / f"{number}.tfrecord")) as writer:
            for _ in range(num_records // _NUM_FILES):
                feature = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=rng.normal(size=32))),
                    "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[rng.integers(10)])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writer.write(example.SerializeToString())


def write_pictures(folder: Path, num_pictures: int) -> None:
    rng = np.random.default_rng(0)
    for number in range(num_pictures):
        place = folder / f"class-{number % _NUM_CLASSES}"
        place.mkdir(exist_ok=True)
        coarse = rng.integers(0, 255, size=(10, 10, 3)).astype("uint8")
        picture = tf.cast(tf.image.resize(coarse, (_SIDE, _SIDE)), tf.uint8)
        tf.io.write_file(str(place / f"{number}.jpg"), tf.io.encode_jpeg(picture))


def _parse(record: Any) -> Any:
    parsed = tf.io.parse_single_example(record, _SPEC)
    return parsed["x"], parsed["y"]


def _parse_batch(records: Any) -> Any:
    parsed = tf.io.parse_example(records, _SPEC)
    return parsed["x"], parsed["y"]


def records_by_raydist(folder: Path) -> tf.data.Dataset:
    """A map of whole batches, as the fastest of tf.data's has."""
    source = data.from_tfrecord(str(folder))
    return source.batches(global_batch_size=_BATCH, seed=1).map(_parse_batch).for_epochs(_EPOCHS).dataset()


def records_by_raydist_one_by_one(folder: Path) -> tf.data.Dataset:
    source = data.from_tfrecord(str(folder), parse=_parse)
    return source.batches(global_batch_size=_BATCH, seed=1, epochs=_EPOCHS).dataset()


def _epochs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.repeat(_EPOCHS).prefetch(_AUTO)


def _records(folder: Path) -> tf.data.Dataset:
    files = tf.data.Dataset.list_files(f"{folder}/*", shuffle=True)
    read = files.interleave(
        tf.data.TFRecordDataset, cycle_length=_NUM_FILES, num_parallel_calls=_AUTO, deterministic=False
    )
    return read.shuffle(_SHUFFLED)


def records_by_tf_data(folder: Path) -> tf.data.Dataset:
    return _epochs(_records(folder).batch(_BATCH).map(_parse_batch, num_parallel_calls=_AUTO))


def records_by_tf_data_one_by_one(folder: Path) -> tf.data.Dataset:
    return _epochs(_records(folder).map(_parse, num_parallel_calls=_AUTO).batch(_BATCH))


def pictures_by_raydist(folder: Path, *, side: int, antialias: bool = True) -> tf.data.Dataset:
    source = data.from_images(str(folder), size=(side, side), antialias=antialias)
    return source.batches(global_batch_size=_PICTURES, seed=1, epochs=_EPOCHS).dataset()


def pictures_by_keras(folder: Path, *, side: int) -> tf.data.Dataset:
    read = tf.keras.utils.image_dataset_from_directory(
        str(folder), image_size=(side, side), batch_size=_PICTURES, seed=1, verbose=False
    )
    return _epochs(read)


def pictures_by_tf_data(folder: Path, *, side: int) -> tf.data.Dataset:
    """As image_dataset_from_directory, but with raydist's antialiasing, which Keras leaves out."""
    paths = sorted(str(path) for path in folder.glob("*/*"))
    labels = [int(path.rpartition("/")[0][-1]) for path in paths]

    def load(path: Any, label: Any) -> Any:
        image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
        image.set_shape([None, None, 3])
        return tf.image.resize(image, (side, side), antialias=True), label

    read = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths))
    return _epochs(read.map(load, num_parallel_calls=_AUTO).batch(_PICTURES))


@tf.function(reduce_retracing=True)
def _consume(iterator: Any) -> Any:
    num_rows = tf.constant(0)
    batch = iterator.get_next_as_optional()
    while batch.has_value():
        num_rows += tf.shape(batch.get_value()[1])[0]
        batch = iterator.get_next_as_optional()
    return num_rows


def rate(make: Callable[[Path], tf.data.Dataset], folder: Path) -> float:
    began_at_s = time.perf_counter()
    return int(_consume(iter(make(folder)))) / (time.perf_counter() - began_at_s)


def compare(folder: Path, ways: dict[str, Callable[[Path], tf.data.Dataset]], rounds: int) -> None:
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, make in ways.items():
            found = rate(make, folder)
            if round_:  # the first one traces, and fills the page cache and raydist's index
                rates[name].append(found)
    for name, values in rates.items():
        print(f"{name}: {statistics.median(values):,.0f} rows/s ({min(values):,.0f} to {max(values):,.0f})")
    for name, values in rates.items():
        what, _, way = name.partition(", ")
        if way != "raydist":
            key = re.sub(r"\W+", "_", name).lower()
            figure(key, rates[f"{what}, raydist"], "rows/s", against=(way, values))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--pictures", type=int, default=2000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp") as name:
        records, pictures = Path(name) / "records", Path(name) / "pictures"
        records.mkdir()
        pictures.mkdir()
        write_records(records, options.records)
        write_pictures(pictures, options.pictures)
        ways = {
            "records, raydist": records_by_raydist,
            "records, tf.data": records_by_tf_data,
            "records one by one, raydist": records_by_raydist_one_by_one,
            "records one by one, tf.data": records_by_tf_data_one_by_one,
        }
        compare(records, ways, options.rounds)
        small = _SIDE - 32
        ways = {
            "pictures of their size, raydist": functools.partial(pictures_by_raydist, side=_SIDE),
            "pictures of their size, Keras": functools.partial(pictures_by_keras, side=_SIDE),
            "resized pictures, raydist": functools.partial(pictures_by_raydist, side=small, antialias=False),
            "resized pictures, Keras": functools.partial(pictures_by_keras, side=small),
            "antialiased pictures, raydist": functools.partial(pictures_by_raydist, side=small),
            "antialiased pictures, tf.data": functools.partial(pictures_by_tf_data, side=small),
        }
        compare(pictures, ways, options.rounds)


if __name__ == "__main__":
    main()
