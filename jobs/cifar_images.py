"""The images that cifar.py and cifar_data.py train on.

`data` is `cifar10` (read from `data_dir` or Keras's cache, else downloaded), `digits` (scikit-learn's
bundled handwritten digits as 32x32x3 images, which need no network), or `auto`: CIFAR-10 where every
task has it or can fetch it, else the digits.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import socket
import tarfile
from pathlib import Path

import numpy as np
import tensorflow as tf

import raydist

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
FOLDER = "cifar-10-batches-py"
CONNECT_TIMEOUT_S = 5.0


def load_images(ctx):
    """Returns training and test data as `(images, labels)`, sorted by label, the same in every task.

    Images are uint8 `[n, 32, 32, 3]`, labels int64 `[n]`. The params `data` and `data_dir` say which.
    """
    if choose_data(ctx) == "digits":
        images, labels = load_digits()
    else:
        images, labels = load_cifar10(ctx.params["data_dir"])
    order = np.argsort(labels, kind="stable")
    images, labels = images[order], labels[order]
    is_test = np.arange(len(labels)) % 6 == 5
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def choose_data(ctx):
    """Returns `cifar10` or `digits`, the same in every task."""
    data, data_dir = ctx.params["data"], ctx.params["data_dir"]
    if data not in ("auto", "cifar10", "digits"):
        raise raydist.SpecError(f"param data is {data!r}; give auto, cifar10 or digits")
    if data != "auto":
        return data
    if all_tasks_can(ctx, can_have_cifar10(data_dir)):
        return "cifar10"
    ctx.note("data: scikit-learn's digits, because not every task has CIFAR-10 or can fetch it")
    return "digits"


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
