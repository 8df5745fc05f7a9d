"""The CIFAR-10 convolutional network, under any strategy.

raydist submit jobs/cifar.py
raydist submit jobs/cifar.py --workers 4 -p epochs=20 -p data=cifar10 -p data_dir=/data/cifar

`data` is `cifar10` (read from `data_dir` or Keras's cache, else downloaded), `digits` (scikit-learn's
bundled handwritten digits as 32x32x3 images, which need no network), or `auto`: CIFAR-10 where every
task has it or can fetch it, else the digits. `source` is where the training reads them from: `arrays` in
memory, or `parquet`, `tfrecord` or `images`, which each host writes to its temporary folder first. The
losses are the same.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import socket
import tarfile
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import raydist

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
CONNECT_TIMEOUT_S = 5.0


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
    name, images, labels = load_data(ctx, params["data"], params["data_dir"])
    is_test = np.arange(len(labels)) % 6 == 5
    source = make_source(params["source"], name, images[~is_test], labels[~is_test])
    train_data = source.batches(global_batch_size=params["batch_size"], seed=1, window_mb=512).map(prepare)
    test_data = raydist.data.from_arrays(images[is_test], labels[is_test])
    test_data = test_data.batches(global_batch_size=params["batch_size"], shuffle=False).map(prepare)
    with ctx.strategy.scope():
        model = build_model()
        model.compile(
            optimizer=tf.keras.optimizers.Adam(params["learning_rate"]),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    ctx.fit(model, train_data, epochs=params["epochs"], validation_data=test_data)


def build_model():
    """Returns the network of TensorFlow's CIFAR-10 tutorial: three convolutions, two dense layers."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


def prepare(images, labels):
    return tf.cast(tf.reshape(images, [-1, 32, 32, 3]), tf.float32) / 255.0, labels


def make_source(kind, name, images, labels):
    """Returns the examples as a source of raydist.data; they are in the order of their labels."""
    if kind == "arrays":
        return raydist.data.from_arrays(images, labels)
    if kind not in WRITERS:
        raise raydist.SpecError(f"param source is {kind!r}; give arrays, {', '.join(WRITERS)}")
    folder = Path(tempfile.gettempdir()) / f"raydist-cifar-{os.getuid()}" / f"{name}-{kind}"
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


def load_data(ctx, data, data_dir):
    """Returns a name, uint8 images `[n, 32, 32, 3]`, and labels `[n]`, sorted, the same in every task."""
    if data not in ("auto", "cifar10", "digits"):
        raise raydist.SpecError(f"param data is {data!r}; give auto, cifar10 or digits")
    if data == "digits" or (data == "auto" and not all_tasks_can(ctx, can_have_cifar10(data_dir))):
        if data == "auto":
            ctx.note("data: scikit-learn's digits, because not every task has CIFAR-10 or can fetch it")
        return "digits", *by_label(*load_digits())
    return "cifar10", *by_label(*load_cifar10(data_dir))


def by_label(images, labels):
    order = np.argsort(labels, kind="stable")
    return images[order], labels[order]


def load_digits():
    from sklearn.datasets import load_digits as load

    digits = load()
    images = tf.image.resize(digits.images[..., np.newaxis] * (255 / 16), (32, 32)).numpy()
    return np.repeat(images.round(), 3, axis=-1).astype("uint8"), digits.target.astype("int64")


def load_cifar10(data_dir):
    folder = find_cifar10(data_dir) or download_cifar10(data_dir)
    names = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
    batches = [pickle.loads((folder / name).read_bytes(), encoding="bytes") for name in names]
    images = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([batch[b"labels"] for batch in batches])
    return np.ascontiguousarray(images.transpose(0, 2, 3, 1)), labels.astype("int64")


def download_cifar10(data_dir):
    """Downloads into Keras's cache, one task of a host at a time, and returns the unpacked folder."""
    if data_dir:
        raise raydist.SpecError(f"param data_dir is {data_dir!r}, which has no {FOLDER}; unpack {URL} there")
    cache = keras_cache()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "cifar-10.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find_cifar10("") is None:
            archive = tf.keras.utils.get_file("cifar-10-python.tar.gz", URL)
            with tarfile.open(archive) as tar:
                tar.extractall(cache, filter="data")
    return find_cifar10("")


def keras_cache():
    return Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "datasets"


def find_cifar10(data_dir):
    """Returns the folder of the unpacked archive, in `data_dir` or in Keras's cache; else None."""
    parent = Path(data_dir) if data_dir else keras_cache()
    for folder in (parent / FOLDER, parent):
        if (folder / "test_batch").is_file():
            return folder
    return None


def can_have_cifar10(data_dir):
    """Whether this task has CIFAR-10 now; fetches it where its server answers within 5 s."""
    if find_cifar10(data_dir) is not None:
        return True
    if data_dir:
        return False
    try:
        with socket.create_connection(("www.cs.toronto.edu", 443), timeout=CONNECT_TIMEOUT_S):
            pass
        return download_cifar10("") is not None
    except Exception as error:  # a proxy's page instead of the archive, a full disk, no such host
        print(f"CIFAR-10 cannot be fetched: {error}")
        return False


def all_tasks_can(ctx, can):
    """Agrees by one all-gather, so that the tasks never train on different data."""

    @tf.function
    def gather():
        def one():
            return tf.distribute.get_replica_context().all_gather(tf.constant([int(can)]), axis=0)

        return ctx.strategy.experimental_local_results(ctx.strategy.run(one))[0]

    return bool(gather().numpy().all())
