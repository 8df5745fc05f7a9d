"""The data of a random program, in each form that `fit` takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzz.program import KEEP, Program

WORDS, LENGTH, CLASSES = 11, 5, 3
OUTPUTS = ("first", "second")  # the outputs' names
SPARSE_LOSSES = ("sparse_crossentropy", "ignoring")


def arrays(program: Program, count: int, *, salt: int = 0) -> tuple[Any, Any, np.ndarray | None]:
    """Returns inputs, labels and weights of so many examples, in the structure that the model has."""
    rng = np.random.default_rng([program.seed, salt])
    parts = {
        "vector": rng.normal(size=(count, 6)).astype(program.dtype),
        "tokens": rng.integers(0, WORDS, size=(count, LENGTH)).astype("int32"),
        "image": rng.normal(size=(count, 8, 8, 2)).astype(program.dtype),
    }
    parts["tokens"][:, 0] = 1  # no row that is padding alone
    parts["sparse"] = np.where(np.abs(parts["vector"]) > 0.7, parts["vector"], 0.0).astype(program.dtype)
    parts["text"] = np.array(
        [[" ".join(f"word{one}" for one in row)] for row in parts["tokens"]], dtype=object
    )
    if program.inputs == "both":
        x: Any = {"tokens": parts["tokens"], "vector": parts["vector"]}
    elif program.inputs == "pair":
        x = (parts["tokens"], parts["vector"])
    else:
        x = parts[program.inputs]
    target = rng.normal(size=(count, 1)).astype(program.dtype)
    places = {"tokens": (LENGTH,), "image": (8, 8)}.get(program.inputs, ())
    y: Any = {
        "regression": target if program.loss != "msle" else np.abs(target),
        "binary": (target > 0).astype(program.dtype),
        "classes": rng.integers(0, CLASSES, size=(count,)).astype("int32"),
        "each": rng.integers(0, CLASSES, size=(count, *places)).astype("int32"),
    }[program.task]
    if program.task in ("classes", "each") and program.loss not in SPARSE_LOSSES:
        y = np.eye(CLASSES, dtype=program.dtype)[y]
    if program.outputs == 2:
        y = (y, np.square(target))
    if program.model == "named":
        y = dict(zip(OUTPUTS, y if program.outputs == 2 else (y,), strict=False))
    shape = (count, *places) if program.weights == "each" else (count,)
    weights = rng.uniform(0.2, 2.0, size=shape).astype(program.dtype) if has_weights(program) else None
    return x, y, weights


def given(program: Program, x: Any) -> Any:
    """Returns a batch of inputs as the model takes them."""
    if program.inputs == "sparse":
        return tf.sparse.from_dense(x)
    return tf.nest.map_structure(tf.convert_to_tensor, x)


def batches(program: Program, whole: Any, size: int) -> tf.data.Dataset:
    """Returns the batches of a tuple of arrays, of which the first are inputs."""
    dataset = tf.data.Dataset.from_tensor_slices(whole).batch(size)
    return _with_inputs(program, dataset)


def _with_inputs(program: Program, dataset: tf.data.Dataset) -> tf.data.Dataset:
    if program.inputs != "sparse":
        return dataset
    return dataset.map(lambda x, *rest: (given(program, x), *rest))


def has_weights(program: Program) -> bool:
    """Whether examples have weights; with several outputs the two Kerases want other structures of them."""
    is_one = program.outputs == 1 and program.model != "named"
    return program.weights in ("sample", "each") and is_one


def class_weight(program: Program) -> dict[int, float] | None:
    is_one = program.outputs == 1 and program.model != "named"
    fits = program.task in ("binary", "classes") and is_one
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
        return {"x": lambda: batches(program, whole, size).repeat(num_passes)}
    if program.data == "repeated":
        return {"x": tf.data.Dataset.from_tensor_slices(whole).repeat().batch(size), "steps_per_epoch": steps}
    if program.data in PIPELINES:
        dataset = PIPELINES[program.data](program, whole)
        return {"x": dataset.repeat() if program.steps_per_epoch else dataset}
    dataset = tf.data.Dataset.from_tensor_slices(whole)
    if program.data == "shuffled":
        dataset = dataset.shuffle(program.num_examples, seed=program.seed)
    if program.data == "filtered":
        dataset = dataset.filter(lambda *_: True)
    dataset = _with_inputs(program, dataset.batch(size))
    return {"x": dataset.repeat() if program.steps_per_epoch else dataset}


def validation_data(program: Program) -> dict[str, Any]:
    """Returns the arguments of `fit` that are its validation."""
    more: dict[str, Any] = {"validation_freq": program.validation_freq}
    if program.validation_steps:
        more["validation_steps"] = program.validation_steps
    if program.validation == "split" and program.data == "arrays":
        return {"validation_split": 0.25, **more}
    if program.validation == KEEP:
        return {}
    x, y, weights = arrays(program, 19, salt=1)
    whole = (x, y) if weights is None else (x, y, weights)
    return {"validation_data": batches(program, whole, 8), **more}


def _padded(program: Program, whole: Any) -> tf.data.Dataset:
    """Texts of several lengths, each batch as long as its longest."""

    def cut(index: Any, row: Any) -> Any:
        return (row[0][: LENGTH - index % 3], *row[1:])

    dataset = tf.data.Dataset.from_tensor_slices(whole).enumerate().map(cut)
    return dataset.padded_batch(program.batch_size)


def _cached(program: Program, whole: Any) -> tf.data.Dataset:
    rows = tf.data.Dataset.from_tensor_slices(whole).cache()
    return rows.shuffle(20, seed=program.seed).batch(program.batch_size).prefetch(2)


def _interleaved(program: Program, whole: Any) -> tf.data.Dataset:
    def part(index: Any) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(whole).shard(3, index)

    rows = tf.data.Dataset.range(3).interleave(part, cycle_length=2)
    return rows.apply(_of_known_length(program)).batch(program.batch_size)


def _from_generator(program: Program, whole: Any) -> tf.data.Dataset:
    count = len(tf.nest.flatten(whole)[0])

    def rows() -> Iterator[Any]:
        yield from (_row(whole, index) for index in range(count))

    signature = tf.nest.map_structure(lambda one: tf.TensorSpec(one.shape[1:], one.dtype), whole)
    dataset = tf.data.Dataset.from_generator(rows, output_signature=signature)
    return dataset.apply(_of_known_length(program)).batch(program.batch_size)


def _of_known_length(program: Program) -> Any:
    # Keras 3 counts a step too many where it does not know the length.
    return tf.data.experimental.assert_cardinality(program.num_examples)


def _mapped(program: Program, whole: Any) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(whole).batch(program.batch_size)
    return dataset.map(lambda *row: row, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def _dropped(program: Program, whole: Any) -> tf.data.Dataset:
    size = min(program.batch_size, program.num_examples)  # of no batch at all Keras 3 counts one
    return tf.data.Dataset.from_tensor_slices(whole).batch(size, drop_remainder=True)


PIPELINES = {
    "padded": _padded,
    "cached": _cached,
    "interleaved": _interleaved,
    "from_generator": _from_generator,
    "mapped": _mapped,
    "dropped": _dropped,
}


def _forever(whole: Any, size: int) -> Iterator[Any]:
    while True:
        yield from (_rows(whole, size, index) for index in range(_num_batches(whole, size)))


def _row(whole: Any, index: int) -> Any:
    return tf.nest.map_structure(lambda array: array[index], whole)


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
