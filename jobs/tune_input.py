"""What cache, prefetch, a parallel map and interleave do for an input pipeline: examples per second for each.

raydist submit jobs/tune_input.py
raydist submit jobs/tune_input.py -p epochs=5 -p data_dir=/data
raydist submit jobs/tune_input.py --workers 2

Each variant reads the same PNG images from TFRecord files and yields the same examples. With more workers
each one measures its own part of the data. The log of a training says how long it has waited for its input;
if that is long, begin here. `raydist.data` does all of this by itself.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import tensorflow as tf
from mnist_images import load_images

import raydist

AUTOTUNE = tf.data.AUTOTUNE


@raydist.job(
    params={"epochs": 3, "files": 8, "examples": 1200, "batch_size": 64, "step_ms": 2.0, "data_dir": ""}
)
def train(ctx: raydist.TrainContext):
    params = ctx.params
    (images, _), _ = load_images(ctx)
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), images[: params["examples"]], num_files=params["files"])
        results = {}
        for name, make in VARIANTS.items():
            data = make(files, params["batch_size"])
            if ctx.num_workers > 1:
                data = data.shard(ctx.num_workers, ctx.task.index)
            count, checksum, seconds = read(data, epochs=params["epochs"], step_s=params["step_ms"] / 1000)
            results[f"{name}/examples_per_second"] = count / seconds
            results |= {f"{name}/examples": count, f"{name}/sum_of_numbers": checksum}
            print(f"{ctx.task}: {name:16} {count / seconds:8.0f} examples/s")
        ctx.report(results, step=1)


def plain(files, batch_size):
    return tf.data.TFRecordDataset(files).map(decode).batch(batch_size)


def cached(files, batch_size):
    # Keeps what was decoded in memory, so that only the first epoch pays. Before any shuffle or random map.
    return tf.data.TFRecordDataset(files).map(decode).cache().batch(batch_size)


def prefetched(files, batch_size):
    # Makes the next batches while the step runs.
    return tf.data.TFRecordDataset(files).map(decode).batch(batch_size).prefetch(AUTOTUNE)


def parallel_map(files, batch_size):
    # Decodes several examples at once, on all cores. The order stays, unless deterministic=False.
    return tf.data.TFRecordDataset(files).map(decode, num_parallel_calls=AUTOTUNE).batch(batch_size)


def interleaved(files, batch_size):
    # Reads several files at once, which counts where they are on a network.
    data = tf.data.Dataset.from_tensor_slices(files)
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=AUTOTUNE)
    return data.map(decode).batch(batch_size)


def everything(files, batch_size):
    data = tf.data.Dataset.from_tensor_slices(files)
    data = data.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=AUTOTUNE)
    return data.map(decode, num_parallel_calls=AUTOTUNE).cache().batch(batch_size).prefetch(AUTOTUNE)


VARIANTS = {
    "plain": plain,
    "cache": cached,
    "prefetch": prefetched,
    "parallel_map": parallel_map,
    "interleave": interleaved,
    "everything": everything,
}


def decode(record):
    features = {"image": tf.io.FixedLenFeature([], tf.string), "number": tf.io.FixedLenFeature([], tf.int64)}
    parsed = tf.io.parse_single_example(record, features)
    image = tf.image.resize(tf.io.decode_png(parsed["image"]), (96, 96))  # what costs the time
    return image / 255.0, parsed["number"]


def read(data, *, epochs, step_s):
    """Returns how many examples there were, the sum of their numbers, and the seconds that they took."""
    count = checksum = 0
    started = time.monotonic()
    for _ in range(epochs):
        for _, numbers in data:
            count, checksum = count + len(numbers), checksum + int(tf.reduce_sum(numbers))
            time.sleep(step_s)  # the step, on an accelerator: the CPU is free meanwhile
    return count, checksum, time.monotonic() - started


def write_files(folder, images, *, num_files):
    files = [str(folder / f"{number}.tfrecord") for number in range(num_files)]
    for first, file in enumerate(files):
        with tf.io.TFRecordWriter(file) as writer:
            for number in range(first, len(images), num_files):
                png = tf.io.encode_png(tf.cast(images[number] * 255, tf.uint8)).numpy()
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                    "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
                }
                writer.write(
                    tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
                )
    return files
