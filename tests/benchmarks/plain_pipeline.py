"""Plain pipeline: the CPU time of 2 workers on TFRecord files with a heavy map, against one device's.

    python -m tests.benchmarks.plain_pipeline [--rounds 3] [--records 1500] [--side 640]

Each record is a JPEG picture of that many pixels square, which a `map` parses, decodes, resizes and
normalizes; then come `batch` and `model.fit` with a small model. In each round, one after the other: one
device; 2 workers, each of which maps its own rows of each batch; 2 workers on files that TensorFlow shards
(`--auto-shard file`); 2 workers that map all examples, because a `shuffle(1)` after the map is in the way.
The time is the CPU time that the operating system counted for each process in the epochs after the first
one, which traces the steps. Prints the sums over the workers and their ratios to one device (target: at most
1.15 for 2 workers), and how far the weights are from one device's. What a step costs each worker beside the
map is in the ratio, so it is larger for smaller pictures.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
from typing import Any

import numpy as np

from tests.benchmarks.figures.printing import figure
from tests.support.processes import Cluster, run_function

HERE = "tests.benchmarks.plain_pipeline"
FILES = 8
BATCH = 64


def write_records(ctx: Any, *, folder: str, num_records: int, side: int) -> dict[str, Any]:
    """Writes the files; in a task, because the benchmark's own process has no TensorFlow."""
    import tensorflow as tf

    rng = np.random.default_rng(5)
    for number, indices in enumerate(np.array_split(np.arange(num_records), FILES)):
        with tf.io.TFRecordWriter(f"{folder}/{number}.tfrecord") as writer:
            for index in indices:
                coarse = rng.uniform(0, 255, (16, 16, 3))
                picture = tf.cast(tf.image.resize(coarse, (side, side)), tf.uint8)
                features = {
                    "image": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[tf.io.encode_jpeg(picture).numpy()])
                    ),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(index) % 10])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
    return {}


def fit(ctx: Any, *, folder: str, is_late: bool = False) -> dict[str, Any]:
    """Trains three epochs; returns the seconds of CPU time of the last two."""
    import tensorflow as tf

    def parse(record: Any) -> Any:
        spec = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
        found = tf.io.parse_single_example(record, spec)
        image = tf.io.decode_jpeg(found["image"], channels=3)
        image = tf.image.resize(image, (256, 256), method="bicubic") / 255.0
        image = tf.image.resize(tf.image.per_image_standardization(image), (24, 24), method="area")
        return tf.ensure_shape(image, (24, 24, 3)), found["label"]

    files = sorted(tf.io.gfile.glob(f"{folder}/*.tfrecord"))
    data = tf.data.TFRecordDataset(files).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    if is_late:
        data = data.shuffle(1)
    data = data.batch(BATCH).prefetch(tf.data.AUTOTUNE)
    tf.keras.utils.set_random_seed(1)
    layers = tf.keras.layers
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((24, 24, 3)), layers.Flatten(), layers.Dense(10)])
        model.compile(
            tf.keras.optimizers.SGD(0.01), tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        )
    begun: list[float] = []

    class Clock(tf.keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                begun.append(cpu_s())

    ctx.fit(model, data, epochs=3, callbacks=[Clock()])
    return {
        "cpu_s": cpu_s() - begun[0],
        "weights": np.concatenate([weight.ravel() for weight in model.get_weights()]),
    }


def cpu_s() -> float:
    """Returns the CPU time of this process so far, of all of its threads, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1500)
    parser.add_argument("--side", type=int, default=640)
    given = parser.parse_args()
    folder = tempfile.mkdtemp()
    run_function(
        f"{HERE}:write_records", Cluster(), folder=folder, num_records=given.records, side=given.side
    )
    workers = Cluster(strategy="multi_worker_mirrored", workers=2)
    variants: dict[str, tuple[Cluster, dict[str, Any]]] = {
        "one device": (Cluster(), {}),
        "2 workers, own rows": (workers, {}),
        "2 workers, files": (workers, {"job_options": {"auto_shard": "file"}}),
        "2 workers, all rows": (workers, {"is_late": True}),
    }
    times: dict[str, list[list[float]]] = {name: [] for name in variants}
    weights: dict[str, np.ndarray] = {}
    for number in range(given.rounds):
        for name, (cluster, options) in variants.items():
            tasks = run_function(f"{HERE}:fit", cluster, folder=folder, timeout_s=600, **options)
            times[name].append([task.values["cpu_s"] for task in tasks])
            weights[name] = tasks[0].arrays["weights"]
            told = " + ".join(f"{one:.1f}" for one in times[name][-1])
            print(f"round {number}: {name}: {told} s of CPU time", flush=True)
    sums = {name: statistics.median(map(sum, found)) for name, found in times.items()}
    print(f"\nload average at the end: {os.getloadavg()[0]:.1f}; medians of {given.rounds} rounds")
    for name, seconds in sums.items():
        ratio = seconds / sums["one device"]
        distance = float(np.abs(weights[name] - weights["one device"]).max())
        print(f"{name:20} {seconds:6.1f} s   {ratio:.2f} times one device   weights differ by {distance:.1e}")
    alone = [sum(one) for one in times["one device"]]
    # Without the first epoch's.
    figure(f"example_{given.side}", [1e3 * one / 2 / given.records for one in alone], "ms of CPU time")
    for name, found in list(times.items())[1:]:
        key = name.partition(", ")[2].replace(" ", "_")
        figure(f"{key}_{given.side}", [*map(sum, found)], "s of CPU time", against=("one device", alone))


if __name__ == "__main__":
    main()
