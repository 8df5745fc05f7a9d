"""Arrays in memory, as Keras's `fit` takes them: they become batches of raydist.data.

So each epoch has an order that seed and epoch alone decide, every worker reads its own rows of it, the
workers compare what they have, and a resumed run goes on at the very next batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.data.batches import Batches
from raydist.data.examples import leaves
from raydist.data.sources.arrays import ArraySource
from raydist.errors import UnsupportedError

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
          UnsupportedError: They are no arrays, have different numbers of rows, or none.
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
            f"the data hold {type(value).__name__}, which is no dense array; give NumPy arrays, tensors or "
            "pandas tables, or a tf.data.Dataset of the others"
        )
    array = of_floatx(value, floatx)
    is_series = array.ndim == 1 and type(value).__module__.partition(".")[0] == "pandas"
    return array[:, None] if is_series else array  # as Keras makes a column of it
