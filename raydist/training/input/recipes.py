"""Batches of raydist.data, also those of arrays in memory: each worker makes its own part of every batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf
from isal import isal_zlib

from raydist.data import pipeline
from raydist.data.batches import Batches
from raydist.data.examples import Files, leaves
from raydist.data.sources.arrays import ArraySource
from raydist.errors import UnsupportedError
from raydist.spec.text import listed
from raydist.training.cluster import collectives, worker_shares
from raydist.training.replicas.batch_slices import EvenSlice, Slice

BATCH_SIZE = 32  # Keras's default


def is_arrays(data: Any) -> bool:
    """Whether it is an array, or a structure (list, tuple, dict) of arrays alone."""
    if isinstance(data, Mapping):
        return bool(data) and all(is_arrays(one) for one in data.values())
    if isinstance(data, (list, tuple)):
        return bool(data) and all(is_arrays(one) for one in data)
    return _is_array(data)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """`x`, `y` and weights as NumPy arrays whose rows are the examples.

    Attributes:
      structure: `(x,)`, `(x, y)` or `(x, y, weights)`, each an array or tuples and dicts of arrays.
    """

    structure: tuple[Any, ...]

    @classmethod
    def of(cls, x: Any, y: Any = None, sample_weight: Any = None, *, floatx: str) -> Rows:
        """Takes arrays as Keras takes them: other floats become `floatx`, a pandas Series a column.

        Raises:
          UnsupportedError: They are not arrays, have different numbers of rows, or none.
        """
        if sample_weight is not None and y is None:
            raise UnsupportedError("sample_weight is given, and y is not; give the labels too")
        if sample_weight is not None and isinstance(y, (list, tuple, dict)) and _is_array(sample_weight):
            # One weight for each example, which counts for every output.
            sample_weight = mapped(y, lambda _: sample_weight)
        given = [one for one in (x, y, sample_weight) if one is not None]
        structure = tuple(mapped(one, lambda leaf: _array(leaf, floatx)) for one in given)
        counts = sorted({len(array) for array in leaves(structure)})
        if len(counts) > 1:
            raise UnsupportedError(
                f"the arrays have different numbers of rows: {counts}; give x, y and sample_weight a row for "
                "each example"
            )
        if counts == [0]:
            raise UnsupportedError("the arrays have no rows; give at least one example")
        return cls(structure=structure)

    def __len__(self) -> int:
        return len(leaves(self.structure)[0])

    def split(self, fraction: float) -> tuple[Rows, Rows]:
        """Returns the first rows, and the last ones, which are the `fraction`; as Keras's validation_split.

        Raises:
          UnsupportedError: It is not between 0 and 1, or leaves nothing on one side.
        """
        count = math.floor(len(self) * (1.0 - fraction)) if 0 < fraction < 1 else 0
        if not 0 < count < len(self):
            raise UnsupportedError(
                f"validation_split is {fraction} of {len(self)} examples; it has to be between 0 and 1 and "
                "leave examples for both"
            )
        parts = (slice(0, count), slice(count, None))
        first, last = (Rows(structure=mapped(self.structure, itemgetter(part))) for part in parts)
        return first, last

    def batches(self, batch_size: int, *, shuffle: bool, seed: int = 0) -> Batches:
        """Returns the recipe of their global batches."""
        return ArraySource(self.structure).batches(
            global_batch_size=min(batch_size, len(self)), shuffle=shuffle, seed=seed
        )


def batches_of(data: Any, *, batch_size: int | None = None, floatx: str) -> Batches:
    """Returns batches in order of arrays `x`, `(x, y)` or `(x, y, weights)`, as validation takes them."""
    given = tuple(data) if isinstance(data, (list, tuple)) else (data,)
    if len(given) > 3:
        raise UnsupportedError(
            f"the data are {len(given)} arrays; give x, (x, y) or (x, y, sample_weight), where x may be a "
            "list of arrays"
        )
    return Rows.of(*given, floatx=floatx).batches(batch_size or BATCH_SIZE, shuffle=False)


def of_floatx(value: Any, floatx: str) -> np.ndarray:
    """Returns an array; of Keras's float type if it is one of floats."""
    array = np.asarray(value)
    is_other_float = array.dtype.kind == "f" and array.dtype != np.dtype(floatx)
    return array.astype(floatx) if is_other_float else array


def _is_array(value: Any) -> bool:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return False
    return hasattr(value, "__array__") and len(getattr(value, "shape", ())) > 0


def mapped(structure: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a structure of lists, tuples and dicts with changed ends, lists as tuples."""
    if isinstance(structure, Mapping):
        return {key: mapped(one, change) for key, one in structure.items()}
    if isinstance(structure, (list, tuple)):
        return tuple(mapped(one, change) for one in structure)
    return change(structure)


def _array(value: Any, floatx: str) -> np.ndarray:
    if not _is_array(value):
        raise UnsupportedError(
            f"the data hold {type(value).__name__}, which is not a dense array; give NumPy arrays, tensors, "
            "pandas tables, or a tf.data.Dataset of the others"
        )
    array = of_floatx(value, floatx)
    is_series = array.ndim == 1 and type(value).__module__.partition(".")[0] == "pandas"
    return array[:, None] if is_series else array  # as Keras makes a column of it


_FILES_AT_ONCE = 4096


def parts_of_workers(recipe: Batches, strategy: tf.distribute.Strategy, *, start_step: int = 0) -> Any:
    """Returns the batches from a step of the run on, as a distributed dataset, of which no more may be taken.

    Elements are `Slice`s, or `EvenSlice`s where every replica has as many examples in every step. A
    collective.

    Raises:
      UnsupportedError: The workers have not the same batches; in each worker.
    """
    _check_same_batches(recipe, strategy, start_step)
    shares = worker_shares.of(strategy)

    def own(input_context: tf.distribute.InputContext) -> tf.data.Dataset:
        part = pipeline.Part.of(input_context, shares)
        is_even = pipeline.has_equal_parts(recipe, part)
        read = pipeline.in_this_process(pipeline.BlockReader(recipe, part, pads=True))
        finish = (lambda batch, num_examples, num_global: EvenSlice(batch)) if is_even else Slice
        found = pipeline.elements(recipe, part, start_step=start_step, read=read, finish=finish)
        # In workers of several replicas TensorFlow would not know, and they alone would ask in each step
        # whether all still have data.
        return found.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))

    return strategy.distribute_datasets_from_function(own)


def global_batches(recipe: Batches, strategy: tf.distribute.Strategy, *, start_step: int = 0) -> Any:
    """Returns the batches from a step of the run on, for a model whose own `fit` changes them first.

    Keras distributes them, and each worker reads all rows. A collective; raises as `parts_of_workers`.
    """
    _check_same_batches(recipe, strategy, start_step)
    return pipeline.dataset(recipe, pipeline.Part(), start_step=start_step)


def refuse_in_keras(*given: Any) -> None:
    """Raises UnsupportedError for batches of raydist.data among the data that Keras itself is given."""
    if any(isinstance(one, Batches) for one in given):
        raise UnsupportedError(
            "Keras's own fit, evaluate and predict do not take batches of raydist.data; call ctx.fit, "
            "ctx.evaluate or ctx.predict, or give batches.dataset(), which is a tf.data.Dataset"
        )


def check_length(data: Any, num_steps: int) -> None:
    """Raises UnsupportedError where batches of raydist.data end before the training does."""
    if isinstance(data, Batches) and data.num_steps is not None and data.num_steps < num_steps:
        raise UnsupportedError(
            f"train_data are batches of {data.epochs} {'epoch' if data.epochs == 1 else 'epochs'}, "
            f"{data.num_steps} steps, and {num_steps} steps are to be trained; leave out "
            "batches(epochs=…), and they continue as long as needed"
        )


def _check_same_batches(recipe: Batches, strategy: tf.distribute.Strategy, start_step: int) -> None:
    if collectives.is_alone(strategy):
        return
    files = recipe.source.files
    contents = [] if files is None else files.contents()
    whole = isal_zlib.crc32(np.asarray(contents, "int64").tobytes())
    rows = collectives.gather_over_workers(strategy, [recipe.fingerprint(), start_step, len(contents), whole])
    inconsistent = collectives.inconsistent_workers(rows)
    if not inconsistent:
        return
    if files is not None and any(row[2:] != rows[0][2:] for row in rows):
        raise UnsupportedError(_other_files(files, contents, strategy, counts=[row[2] for row in rows]))
    named = collectives.worker_names(inconsistent)
    raise UnsupportedError(
        f"{named} {'has' if len(inconsistent) == 1 else 'have'} other batches than the others: the "
        "examples, their order, the seed or the batch size differ; each worker has to make the same "
        "source, as it reads its own part of each batch (random arrays need a fixed seed)"
    )


def _other_files(
    files: Files, contents: Sequence[int], strategy: tf.distribute.Strategy, *, counts: Sequence[int]
) -> str:
    """Returns which files the workers do not have alike, with a remedy. A collective."""
    remedy = "give each worker the same files: copy them to its host again, or read them from shared storage"
    if len(set(counts)) > 1:
        told = collectives.by_worker(counts)
        return f"the workers have not as many files of the source: {told}; {remedy}"
    differing: dict[int, list[int]] = {}
    for first in range(0, len(contents), _FILES_AT_ONCE):
        rows = collectives.gather_over_workers(strategy, contents[first : first + _FILES_AT_ONCE])
        for number, column in enumerate(zip(*rows, strict=True), start=first):
            if others := collectives.inconsistent_workers([[one] for one in column]):
                differing[number] = others
        if differing:
            break
    workers = collectives.worker_names(sorted(set().union(*differing.values())))
    names = listed(map(files.uri, differing), most=3)
    verb = "differs" if len(differing) == 1 else "differ"
    return f"{names} of {workers} {verb} from the other workers' in name, size or content; {remedy}"
