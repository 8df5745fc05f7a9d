"""The data of a random program, in each form that `fit` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzz.program import KEEP, Program

WORDS, LENGTH, CLASSES = 11, 5, 3


def arrays(program: Program, count: int, *, salt: int = 0) -> tuple[Any, Any, np.ndarray | None]:
    """Returns inputs, labels and weights of so many examples, in the structure that the model has."""
    rng = np.random.default_rng([program.seed, salt])
    parts = {
        "vector": rng.normal(size=(count, 6)).astype(program.dtype),
        "tokens": rng.integers(0, WORDS, size=(count, LENGTH)).astype("int32"),
        "image": rng.normal(size=(count, 8, 8, 2)).astype(program.dtype),
    }
    parts["tokens"][:, 0] = 1  # no row that is padding alone
    if program.inputs == "both":
        x: Any = {"tokens": parts["tokens"], "vector": parts["vector"]}
    else:
        x = parts[program.inputs]
    target = rng.normal(size=(count, 1)).astype(program.dtype)
    y: Any = {
        "regression": target,
        "binary": (target > 0).astype(program.dtype),
        "classes": rng.integers(0, CLASSES, size=(count,)).astype("int32"),
    }[program.task]
    if program.task == "classes" and program.loss != "sparse_crossentropy":
        y = np.eye(CLASSES, dtype=program.dtype)[y]
    if program.outputs == 2:
        y = (y, np.square(target))
    weights = rng.uniform(0.2, 2.0, size=count).astype(program.dtype) if has_weights(program) else None
    return x, y, weights


def has_weights(program: Program) -> bool:
    """Whether examples have weights; with several outputs the two Kerases want other structures of them."""
    return program.weights == "sample" and program.outputs == 1


def class_weight(program: Program) -> dict[int, float] | None:
    fits = program.task in ("binary", "classes") and program.outputs == 1
    sparse = program.task == "binary" or program.loss == "sparse_crossentropy"
    return {0: 0.5, 1: 2.0, 2: 1.5} if program.weights == "class" and fits and sparse else None


def training_data(program: Program) -> dict[str, Any]:
    """Returns the arguments of `fit` that are its data."""
    x, y, weights = arrays(program, program.num_examples)
    size = program.batch_size
    if program.data == "arrays":
        given: dict[str, Any] = {"x": x, "y": y, "batch_size": size, "shuffle": program.shuffle}
        return given if weights is None else {**given, "sample_weight": weights}
    whole = (x, y) if weights is None else (x, y, weights)
    steps = -(-program.num_examples // size)
    if program.data == "generator":
        return {"x": _forever(whole, size), "steps_per_epoch": steps}
    if program.data == "sequence":
        return {"x": _Batches(whole, size), "shuffle": False}
    if program.data == "function":
        # Of what a function returns, parameter servers take as many passes as they need.
        num_passes = -1 if program.steps_per_epoch and not program.is_shared else 1
        return {"x": lambda: tf.data.Dataset.from_tensor_slices(whole).batch(size).repeat(num_passes)}
    dataset = tf.data.Dataset.from_tensor_slices(whole)
    if program.data == "shuffled":
        dataset = dataset.shuffle(program.num_examples, seed=program.seed)
    if program.data == "filtered":
        dataset = dataset.filter(lambda *_: True)
    dataset = dataset.batch(size)
    return {"x": dataset.repeat() if program.steps_per_epoch else dataset}


def validation_data(program: Program) -> dict[str, Any]:
    """Returns the arguments of `fit` that are its validation."""
    if program.validation == "split" and program.data == "arrays":
        return {"validation_split": 0.25}
    if program.validation == KEEP:
        return {}
    x, y, weights = arrays(program, 19, salt=1)
    whole = (x, y) if weights is None else (x, y, weights)
    return {"validation_data": tf.data.Dataset.from_tensor_slices(whole).batch(8)}


def _forever(whole: Any, size: int) -> Iterator[Any]:
    while True:
        yield from (_rows(whole, size, index) for index in range(_num_batches(whole, size)))


def _rows(whole: Any, size: int, index: int) -> Any:
    return tf.nest.map_structure(lambda array: array[index * size : (index + 1) * size], whole)


def _num_batches(whole: Any, size: int) -> int:
    return -(-len(tf.nest.flatten(whole)[0]) // size)


def _sequence_class() -> Any:
    return getattr(tf.keras.utils, "PyDataset", None) or tf.keras.utils.Sequence


class _Batches(_sequence_class()):  # type: ignore[misc]
    def __init__(self, whole: Any, size: int) -> None:
        super().__init__()
        self.whole, self.size = whole, size

    def __len__(self) -> int:
        return _num_batches(self.whole, self.size)

    def __getitem__(self, index: int) -> Any:
        return _rows(self.whole, self.size, index)
