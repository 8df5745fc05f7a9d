"""Remote reads: rows/s from S3 with a latency, against the same store without, and against files.

    python -m tests.benchmarks.remote [--rounds 5] [--latency-ms 50] [--rows 800000] [--images 16000]

The store is a small one (tests/support/static_store.py), in a process of its own on this machine, whose
every answer begins that much later; with moto, that would be what is measured. In turn, shuffled, without
training: Parquet (33 float columns, row groups of 16384 rows), TFRecord (records of 1 kB) and images (JPEG
pictures of 64 pixels square, decoded), each from files, from the store, and from the store with its latency.
Prints the rates of each round, the ratios (target: at least 0.8 of the store without latency), and the
requests of one epoch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from raydist import data
from tests.benchmarks.figures.printing import figure
from tests.benchmarks.input import FEATURES, write
from tests.support.object_store import s3_environ
from tests.support.static_store import StaticStore, static_store

BATCH_SIZE = 1024
IMAGE_BATCH_SIZE = 128
RECORDS_PER_FILE, RECORD_BYTES = 25_000, 1000
CLASSES, SIDE = 10, 64


def write_records(folder: Path, num_records: int) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    for number, first in enumerate(range(0, num_records, RECORDS_PER_FILE)):
        with tf.io.TFRecordWriter(str(folder / f"{number:04}.tfrecord")) as writer:
            for _ in range(min(RECORDS_PER_FILE, num_records - first)):
                writer.write(rng.bytes(RECORD_BYTES))


def write_images(folder: Path, num_images: int) -> None:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    pictures = [
        tf.io.encode_jpeg(rng.integers(0, 255, (SIDE, SIDE, 3)).astype("uint8")).numpy() for _ in range(16)
    ]
    for number in range(num_images):
        place = folder / f"class{number % CLASSES}"
        place.mkdir(exist_ok=True)
        (place / f"{number:06}.jpg").write_bytes(pictures[number % len(pictures)])


def parquet(uri: str) -> data.Batches:
    source = data.from_parquet(uri, features=FEATURES, label="label")
    return source.batches(global_batch_size=BATCH_SIZE, seed=1)


def tfrecord(uri: str) -> data.Batches:
    return data.from_tfrecord(uri).batches(global_batch_size=BATCH_SIZE, seed=1)


def images(uri: str) -> data.Batches:
    return data.from_images(uri, size=(SIDE, SIDE)).batches(global_batch_size=IMAGE_BATCH_SIZE, seed=1)


WAYS: dict[str, tuple[Callable[[str], data.Batches], Callable[[Path, int], None]]] = {
    "parquet": (parquet, write),
    "tfrecord": (tfrecord, write_records),
    "images": (images, write_images),
}


def rate(recipe: data.Batches) -> tuple[float, float]:
    """Returns the rows of one epoch by the seconds that it took, and the seconds to its first batch."""
    began_at_s = time.perf_counter()
    first_s = None
    for _ in recipe.dataset():
        first_s = first_s or time.perf_counter() - began_at_s
    assert first_s is not None
    return recipe.steps.num_examples / (time.perf_counter() - began_at_s), first_s


def compare(name: str, folder: Path, store: StaticStore, *, rounds: int, latency_s: float) -> None:
    make, _ = WAYS[name]
    uri = f"s3://bucket/{name}"
    places: dict[str, tuple[str, float]] = {
        "files": (str(folder / "bucket" / name), 0.0),
        "store": (uri, 0.0),
        "latency": (uri, latency_s),
    }
    rates: dict[str, list[float]] = {one: [] for one in places}
    firsts: dict[str, list[float]] = {one: [] for one in places}
    planned: dict[str, list[float]] = {one: [] for one in places}
    requests: Any = None
    for number in range(rounds):
        for one, (place, delay_s) in places.items():
            store.set_delay(delay_s)
            began_at_s = time.perf_counter()
            recipe = make(place)
            planned[one].append(time.perf_counter() - began_at_s)
            store.take_counts()
            found, first_s = rate(recipe)
            rates[one].append(found)
            firsts[one].append(first_s)
            if one == "latency":
                requests = store.take_counts()
        told = ", ".join(f"{one} {found[-1]:,.0f}" for one, found in rates.items())
        print(f"{name}, round {number}: {told}", flush=True)
    own = rates["latency"]
    figure(f"{name}_store", own, "rows/s", against=("the store without latency", rates["store"]))
    figure(f"{name}_files", own, "rows/s", against=("files", rates["files"]))
    figure(f"{name}_source", planned["latency"], "s to the source")
    figure(f"{name}_first", firsts["latency"], "s to the first batch")
    figure(f"{name}_requests", sum(requests.values()), "requests of an epoch")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--latency-ms", type=float, default=50.0)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--images", type=int, default=16_000)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    given = parser.parse_args()
    sizes = {"parquet": given.rows, "tfrecord": given.records, "images": given.images}
    with tempfile.TemporaryDirectory(prefix="raydist-remote-") as name:
        folder = Path(name)
        os.environ["RAYDIST_CACHE"] = str(folder / "cache")
        for one in given.ways:
            (folder / "bucket" / one).mkdir(parents=True)
            WAYS[one][1](folder / "bucket" / one, sizes[one])
        os.sync()
        with static_store(folder) as store:
            os.environ.update(s3_environ(store.endpoint))
            for one in given.ways:
                compare(one, folder, store, rounds=given.rounds, latency_s=given.latency_ms / 1e3)


if __name__ == "__main__":
    main()
