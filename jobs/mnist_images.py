"""The images of the gallery's jobs: MNIST where every task has it, else scikit-learn's handwritten digits.

MNIST is Keras's `mnist.npz` in the folder `data_dir`, or in Keras's cache. Nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from cifar_images import all_tasks_can, keras_cache

import raydist

FILE = "mnist.npz"
ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def load_images(ctx):
    """Returns training and test data as `(images, labels)`, the same in every task.

    Images are float32 `[n, height, width, 1]` in 0..1, labels int64 `[n]`. MNIST has 60,000 + 10,000 of
    28x28, the digits of scikit-learn are 1,498 + 299 of 8x8.
    """
    data_dir = ctx.params["data_dir"]
    path = Path(data_dir or keras_cache()) / FILE
    if data_dir and not path.is_file():
        raise raydist.SpecError(f"param data_dir is {data_dir!r}, which has no {FILE}")
    # Workers have to agree, or they would train on different data. A coordinator loads for all of them.
    if path.is_file() if ctx.coordinator else all_tasks_can(ctx, path.is_file()):
        return load_mnist(path)
    ctx.note(f"data: scikit-learn's digits; for MNIST put {FILE} into Keras's cache, or name its data_dir")
    return load_digits()


def load_mnist(path):
    try:
        with np.load(path) as arrays:
            train_x, train_y, test_x, test_y = (arrays[name] for name in ARRAYS)
    except (KeyError, OSError, ValueError) as error:
        raise raydist.SpecError(f"{path} is not Keras's {FILE}: {error}") from error
    return _scaled(train_x, train_y, 255), _scaled(test_x, test_y, 255)


def load_digits():
    from sklearn.datasets import load_digits as load

    digits = load()
    num_test = len(digits.target) // 6
    images, labels = _scaled(digits.images, digits.target, 16)
    return (images[num_test:], labels[num_test:]), (images[:num_test], labels[:num_test])


def _scaled(images, labels, maximum):
    return (images[..., np.newaxis] / maximum).astype("float32"), labels.astype("int64")
