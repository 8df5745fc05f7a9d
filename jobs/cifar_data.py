"""The network of cifar.py on images that are stored in one of four ways; the losses are the same.

raydist submit jobs/cifar_data.py -p source=parquet
raydist submit jobs/cifar_data.py -p source=images --workers 4

`source` is `arrays` in memory, or `parquet`, `tfrecord` or `images` (PNG files in a folder for each class),
which each host first writes to its temporary folder. A job of your own reads files that are there already:
`make_source` has the line for each.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

import tensorflow as tf
from cifar import build_model, scale
from cifar_images import load_images

import raydist


@raydist.job(
    workers=2,
    params={
        "epochs": 5,
        "batch_size": 128,
        "learning_rate": 1e-3,
        "data": "auto",
        "data_dir": "",
        "source": "arrays",
    },
)
def train(ctx: raydist.TrainContext):
    params = ctx.params
    train_set, test_set = load_images(ctx)
    source = make_source(params["source"], *train_set)
    train_data = source.batches(global_batch_size=params["batch_size"], seed=1, window_mb=512)
    test_data = raydist.data.from_arrays(*test_set)
    with ctx.strategy.scope():
        model = build_model(params["learning_rate"])
    ctx.fit(
        model,
        train_data.map(as_images).map(scale),
        epochs=params["epochs"],
        validation_data=test_data.batches(global_batch_size=params["batch_size"], shuffle=False).map(scale),
    )


def as_images(images, labels):
    return tf.reshape(images, [-1, 32, 32, 3]), labels


def make_source(kind, images, labels):
    """Returns the examples as a source of raydist.data; they are in the order of their labels."""
    if kind == "arrays":
        return raydist.data.from_arrays(images, labels)
    if kind not in WRITERS:
        raise raydist.SpecError(f"param source is {kind!r}; give arrays, {', '.join(WRITERS)}")
    folder = Path(tempfile.gettempdir()) / f"raydist-cifar-{os.getuid()}" / f"{len(labels)}-{kind}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one task of a host writes, the others wait
        if not folder.exists():
            aside = folder.with_name(f"{folder.name}.tmp")
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            WRITERS[kind](aside, images, labels)
            aside.rename(folder)
    if kind == "parquet":
        source = raydist.data.from_parquet(str(folder), features=["image"], label="label", dtype="uint8")
    elif kind == "tfrecord":
        source = raydist.data.from_tfrecord(str(folder), parse=parse_record)
    else:
        source = raydist.data.from_images(str(folder))
    return source


def write_parquet(folder, images, labels):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pixels = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), images[0].size)
    table = pa.table({"image": pixels, "label": labels})
    pq.write_table(table, folder / "images.parquet", row_group_size=1000)


def write_tfrecord(folder, images, labels):
    with tf.io.TFRecordWriter(str(folder / "images.tfrecord")) as writer:
        for image, label in zip(images, labels, strict=True):
            image_list = tf.train.BytesList(value=[image.tobytes()])
            label_list = tf.train.Int64List(value=[int(label)])
            feature = {
                "image": tf.train.Feature(bytes_list=image_list),
                "label": tf.train.Feature(int64_list=label_list),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def parse_record(record):
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}
    parsed = tf.io.parse_single_example(record, features)
    return tf.reshape(tf.io.decode_raw(parsed["image"], tf.uint8), [32, 32, 3]), parsed["label"]


def write_images(folder, images, labels):
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / str(label) / f"{number:06d}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tf.io.encode_png(image).numpy())


WRITERS = {"parquet": write_parquet, "tfrecord": write_tfrecord, "images": write_images}
