"""What Keras's `fit` takes beside datasets: arrays, and Python objects that yield batches."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.input import arrays
from raydist.training.input.py_datasets import is_py_dataset
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.trainers.trainer import FitRequest


def resolved(request: FitRequest, *, seed: int) -> FitRequest:
    """Returns the request with arrays as batches of raydist.data, and what concerns arrays alone left out.

    Args:
      seed: Of the order of their rows.

    Raises:
      UnsupportedError: An argument does not go with the data.
    """
    floatx = adapter_of(request.model).library.backend.floatx()
    validation = request.validation_data
    if validation is not None and arrays.is_arrays(validation):
        size = request.validation_batch_size or request.batch_size
        validation = arrays.batches_of(validation, batch_size=size, floatx=floatx)
    if not arrays.is_arrays(request.train_data):
        _refuse_beside_batches(request)
        return dataclasses.replace(request, validation_data=validation)
    if isinstance(request.train_data, tuple) and request.y is None:
        raise UnsupportedError(
            f"train_data is a tuple of {len(request.train_data)}; give the labels by themselves, "
            "ctx.fit(model, x, y), or a list where all of them are inputs"
        )
    rows = arrays.Rows.of(request.train_data, request.y, request.sample_weight, floatx=floatx)
    if request.class_weight and request.sample_weight is not None:
        raise UnsupportedError("class_weight and sample_weight are both given; give one of them, as to Keras")
    held_out = None
    if request.validation_split and validation is None:
        rows, held_out = rows.split(request.validation_split)
    if not isinstance(request.shuffle, bool):
        raise UnsupportedError(f"shuffle is {request.shuffle!r}; ctx.fit takes True or False")
    size = request.batch_size
    if not size:
        steps = request.steps_per_epoch
        size = math.ceil(len(rows) / steps) if steps else arrays.BATCH_SIZE
    if held_out is not None:
        validation = held_out.batches(request.validation_batch_size or size, shuffle=False)
    return dataclasses.replace(
        request,
        train_data=rows.batches(size, shuffle=request.shuffle, seed=seed),
        validation_data=validation,
        y=None,
        sample_weight=None,
        batch_size=None,
        validation_split=0.0,
        validation_batch_size=None,
    )


def _refuse_beside_batches(request: FitRequest) -> None:
    """Refuses what only arrays can be given with; Keras ignores some of it."""
    given = {
        "y": request.y is not None,
        "sample_weight": request.sample_weight is not None,
        "batch_size": request.batch_size is not None,
        "validation_split": bool(request.validation_split),
    }
    names = [name for name, is_given in given.items() if is_given]
    if names:
        raise UnsupportedError(
            f"ctx.fit got {', '.join(names)} beside train_data of {type(request.train_data).__name__}, which "
            "only arrays can be given with; put labels and weights into its batches (x, y, sample_weight)"
        )


def is_generator(data: Any) -> bool:
    """Whether it yields batches once; datasets and PyDatasets can begin anew."""
    return hasattr(data, "__next__") and hasattr(data, "__iter__")


def dataset_of_train_generator(request: FitRequest) -> tf.data.Dataset:
    """Returns a dataset of what the generator yields that a `fit` is given.

    Raises:
      UnsupportedError: It yields nothing, or several epochs would each need one.
    """
    num_epochs = request.epochs - request.initial_epoch
    if request.steps_per_epoch is None and num_epochs > 1:
        raise UnsupportedError(
            f"train_data is a generator, which can be read once, and epochs are {num_epochs}; give "
            "steps_per_epoch, so that one pass covers all epochs, or give a keras.utils.PyDataset or a "
            "tf.data.Dataset"
        )
    return dataset_of_generator(request.train_data, request.model, name="train_data")


def dataset_of_generator(generator: Iterator[Any], model: Any, *, name: str) -> tf.data.Dataset:
    """Returns a dataset of what a generator yields, which can be read once.

    Args:
      name: What the generator is called in the call.

    Raises:
      UnsupportedError: It yields nothing.
    """
    floatx = adapter_of(model).library.backend.floatx()
    peeked = list(itertools.islice(generator, 1))
    if not peeked:
        raise UnsupportedError(f"{name} is a generator that yields no batch")
    has_begun = False

    def batches() -> Iterator[Any]:
        nonlocal has_begun
        if has_begun:
            raise RuntimeError(f"{name} is a generator, and has been read already")
        has_begun = True
        for batch in itertools.chain(peeked, generator):
            yield _batch(batch, floatx)

    return tf.data.Dataset.from_generator(
        batches, output_signature=spec_of(_batch(peeked[0], floatx))
    ).prefetch(tf.data.AUTOTUNE)


def batch_spec(data: Any, model: Any) -> Any:
    """Returns the structure of a batch of a PyDataset."""
    return spec_of(_batch(data[0], adapter_of(model).library.backend.floatx()))


def spec_of(batch: Any) -> Any:
    """Returns the structure of batches like this one, of any number of examples."""

    def spec(component: Any) -> tf.TensorSpec:
        return tf.TensorSpec([None, *component.shape[1:]], component.dtype)

    return tf.nest.map_structure(spec, batch)


def _batch(batch: Any, floatx: str) -> Any:
    """Returns a batch as tensors' arrays, in the structure that Keras makes of it."""
    if not isinstance(batch, (list, tuple, dict)):
        batch = (batch,)
    parts = tuple(batch) if isinstance(batch, list) else batch
    if isinstance(parts, tuple):
        parts = tuple(one for one in parts if one is not None)
    return arrays.mapped(parts, lambda one: arrays.of_floatx(one, floatx))


def check_py_dataset(data: Any, model: Any, *, name: str) -> bool:
    """Whether the data are a PyDataset of the model's own Keras; raises UnsupportedError for the other's."""
    if not is_py_dataset(data):
        return False
    base = adapter_of(model).library.utils.Sequence
    if isinstance(data, base):
        return True
    raise UnsupportedError(
        f"{name}, {type(data).__name__}, is of the other Keras than the model; make it of "
        f"{base.__module__.partition('.')[0]}.utils.Sequence"
    )
