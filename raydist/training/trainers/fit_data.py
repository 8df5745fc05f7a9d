"""What Keras's `fit` takes besides datasets: arrays, Python iterables of batches, and `class_weight`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.data.batches import Batches
from raydist.errors import UnsupportedError
from raydist.training.input import drawn_batches, recipes, worker_order
from raydist.training.input.py_datasets import is_py_dataset, num_batches_of
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.reporting import reporter
from raydist.training.trainers.base import FitRequest


def applied(data: Any, request: FitRequest) -> Any:
    """Returns `data` with weights by the request's classes; as they are where it has none.

    Raises:
      UnsupportedError: They are distributed already.
    """
    if not request.class_weight:
        return data
    weighted = adapter_of(request.model).class_weights(request.class_weight)
    if isinstance(data, Batches):
        return data.map(weighted)
    if not callable(data):
        return _weighted(data, weighted)

    @functools.wraps(data)  # with its parameters, as `takes_input_context` looks at them
    def mapped(*context: tf.distribute.InputContext) -> Any:
        return _weighted(data(*context), weighted)

    return mapped


def _weighted(data: Any, weighted: Callable[..., Any]) -> Any:
    if isinstance(data, tf.data.Dataset):
        return data.map(weighted)
    raise UnsupportedError(
        f"class_weight cannot be given for a {type(data).__name__}; map it to (x, y, weight) before "
        "it is distributed"
    )


# Batches that are looked at for the sizes in which they differ, as Keras 3 does.
_NUM_PEEKED = 2


def resolved(request: FitRequest, *, seed: int) -> FitRequest:
    """Returns the request with arrays as batches of raydist.data, and what concerns arrays alone left out.

    Raises:
      UnsupportedError: An argument does not go with the data.
    """
    for name in ("batch_size", "validation_batch_size"):
        check_batch_size(getattr(request, name), name=name)
    floatx = adapter_of(request.model).library.backend.floatx()
    validation = request.validation_data
    if validation is not None and recipes.is_arrays(validation):
        size = request.validation_batch_size or request.batch_size
        validation = recipes.batches_of(validation, batch_size=size, floatx=floatx)
    if not recipes.is_arrays(request.train_data):
        given = {
            "y": request.y is not None,
            "sample_weight": request.sample_weight is not None,
            "batch_size": request.batch_size is not None,
            "validation_split": bool(request.validation_split),
        }
        refuse_beside_batches("ctx.fit", f"train_data of {type(request.train_data).__name__}", given)
        return dataclasses.replace(request, validation_data=validation)
    if isinstance(request.train_data, tuple) and request.y is None:
        raise UnsupportedError(
            f"train_data is a tuple of {len(request.train_data)}; give the labels by themselves, "
            "ctx.fit(model, x, y), or a list where all of them are inputs"
        )
    rows = recipes.Rows.of(request.train_data, request.y, request.sample_weight, floatx=floatx)
    if request.class_weight and request.sample_weight is not None:
        raise UnsupportedError("class_weight and sample_weight are both given; give one of them, as to Keras")
    held_out = None
    if request.validation_split and validation is None:
        rows, held_out = rows.split(request.validation_split)
    if not isinstance(request.shuffle, bool):
        raise UnsupportedError(f"shuffle is {request.shuffle!r}; ctx.fit takes True or False")
    if request.shuffle:
        tell_order("arrays")
    size, steps = request.batch_size, request.steps_per_epoch
    if not size:
        size = math.ceil(len(rows) / steps) if steps else recipes.BATCH_SIZE
    num_batches = math.ceil(len(rows) / size)
    ends_epochs = adapter_of(request.model).ends_epochs_with_arrays
    if steps and (steps > num_batches or (ends_epochs and steps < num_batches)):
        note_passes(request, "arrays", num_batches=num_batches, steps=steps)
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


def note_passes(request: FitRequest, what: str, *, num_batches: int, steps: int) -> None:
    """Notes that epochs continue into the next pass over the data, which they do not in Keras."""
    ends = (
        "Keras 3 by itself ends an epoch early where a pass ends"
        if adapter_of(request.model).ends_epochs_with_arrays
        else "tf_keras by itself reads them once per epoch, and then ends the training"
    )
    if (request.epochs - request.initial_epoch) * steps > num_batches:
        reporter.note(
            f"train_data is {what} of {num_batches} batches, and steps_per_epoch is {steps}: epochs go "
            f"on through the next pass, and {ends}; leave "
            "steps_per_epoch out, or use your own model.fit with ctx.callbacks() for Keras's epochs"
        )


def tell_order(what: str) -> None:
    """Tells that raydist shuffles the data, and not Keras."""
    reporter.detail(
        f"ctx.fit shuffles {what} by --seed and the epoch, in another order than Keras draws, so that a run "
        "can continue at each batch; give shuffle=False to keep the order, or use your own model.fit with "
        "ctx.callbacks() for that of Keras"
    )


def check_batch_size(size: int | None, *, name: str = "batch_size") -> None:
    """Raises UnsupportedError for a size of batches that have no rows."""
    if size is not None and size < 1:
        raise UnsupportedError(f"{name} is {size}; give at least 1, or leave it out")


def refuse_beside_batches(call: str, data: str, given: Mapping[str, bool]) -> None:
    """Raises UnsupportedError for arguments that only arrays can be given with; Keras ignores some of them.

    Args:
      call: Such as `ctx.fit`.
      data: The data, in words.
      given: The arguments, and whether they are given.
    """
    names = [name for name, is_given in given.items() if is_given]
    if names:
        raise UnsupportedError(
            f"{call} got {', '.join(names)} beside {data}, which "
            "only arrays can be given with; put labels and weights into its batches (x, y, sample_weight)"
        )


def is_generator(data: Any) -> bool:
    """Whether it yields batches once; datasets and PyDatasets can start over."""
    return hasattr(data, "__next__") and hasattr(data, "__iter__")


def dataset_of_train_generator(request: FitRequest) -> tuple[tf.data.Dataset, BatchSpecs]:
    """Returns a dataset of what the generator yields that a `fit` is given, and the structure of its batches.

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
    steps = adapter_of(request.model).steps_taken(request.model, request.steps_per_epoch)
    count = None if steps is None else num_epochs * steps * request.accumulate
    return dataset_of_generator(request.train_data, request.model, name="train_data", num_batches=count)


def dataset_of_generator(
    generator: Iterator[Any], model: Any, *, name: str, num_batches: int | None = None
) -> tuple[tf.data.Dataset, BatchSpecs]:
    """Returns a dataset of what a generator yields, which can be read once, and the structure of its batches.

    Args:
      num_batches: How many are trained on; None where that is not known.

    Raises:
      UnsupportedError: It yields nothing.
    """
    floatx = adapter_of(model).library.backend.floatx()
    peeked = list(itertools.islice(generator, _NUM_PEEKED))
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

    batches.raydist_compared = True  # type: ignore[attr-defined]
    worker_order.check_batches(peeked, model.distribute_strategy, name=name)
    specs = specs_of(peeked, model)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=specs.signature)
    if (drawn := drawn_batches.of_python(dataset, model.distribute_strategy)) is not None:
        drawn.begin_epoch(num_batches, is_new_pass=False)
    return dataset.prefetch(tf.data.AUTOTUNE), specs


@dataclass(frozen=True, kw_only=True)
class BatchSpecs:
    """The structure of batches that Python makes, in whose sizes they may differ, by the first ones.

    Attributes:
      signature: Of all batches that a `fit` takes, as open as the model's Keras has it.
      model: What the model is built from.
      exported: What an exported model takes.
    """

    signature: Any
    model: Any
    exported: Any


def specs_of(peeked: Sequence[Any], model: Any) -> BatchSpecs:
    """Returns the structure of batches like these: those that Keras would look at."""
    adapter = adapter_of(model)
    batches = [_batch(one, adapter.library.backend.floatx()) for one in peeked]
    common = tf.nest.map_structure(_common_spec, *batches)
    if not adapter.opens_sizes:
        return BatchSpecs(signature=common, model=common, exported=common)
    ranks = tf.nest.map_structure(lambda one: tf.TensorSpec([None] * one.ndim, one.dtype), batches[0])
    # It builds a model from the sizes of a batch.
    first = tf.nest.map_structure(_common_spec, batches[0])
    return BatchSpecs(signature=ranks, model=first, exported=common)


def _common_spec(*components: np.ndarray) -> tf.TensorSpec:
    """Returns the type of a component of batches: open in the number of examples, and where sizes differ."""
    shape = tf.TensorShape(components[0].shape)
    for one in components[1:]:
        shape = shape.most_specific_compatible_shape(one.shape)
    return tf.TensorSpec(shape if shape.rank is None else [None, *shape[1:]], components[0].dtype)


def _batch(batch: Any, floatx: str) -> Any:
    """Returns a batch as tensors' arrays, in the structure that Keras makes of it."""
    if not isinstance(batch, (list, tuple, dict)):
        batch = (batch,)
    parts = tuple(batch) if isinstance(batch, list) else batch
    if isinstance(parts, tuple):
        parts = tuple(one for one in parts if one is not None)
    return recipes.mapped(parts, lambda one: recipes.of_floatx(one, floatx))


def first_batches(data: Any) -> list[Any]:
    """Returns the first batches of a PyDataset, for `specs_of`."""
    num_batches = num_batches_of(data)
    return [data[number] for number in range(min(_NUM_PEEKED, num_batches or _NUM_PEEKED))]


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
