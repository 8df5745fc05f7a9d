"""from_arrays: examples that are in memory already."""

from __future__ import annotations

from typing import Any

import numpy as np
from isal import isal_zlib

from raydist.data.examples import Field, leaves, names_of, with_leaves
from raydist.data.sources.source import Source
from raydist.errors import DataError

# Examples by whose texts the size of all is estimated.
_SAMPLED = 256


def from_arrays(x: Any, y: Any = None) -> ArraySource:
    """Returns a source of the rows of arrays, which have to be the same in every task.

    Example:
        batches = raydist.data.from_arrays(x, y).batches(global_batch_size=128)

    Args:
      x: An array `[n, ...]`, or a structure (tuple, dict) of them.
      y: Labels, an array or a structure of arrays; None if there are none.

    Raises:
      DataError: The arrays differ in length, or one holds objects.
    """
    return ArraySource(x if y is None else (x, y))


class ArraySource(Source):
    """Arrays whose rows are the examples."""

    def __init__(self, structure: Any) -> None:
        names = names_of(structure)
        self._arrays = [_array(name, one) for name, one in zip(names, leaves(structure), strict=True)]
        self.structure = with_leaves(structure, range(len(self._arrays)))
        fields = []
        for name, array in zip(names, self._arrays, strict=True):
            if array.ndim == 0:
                raise DataError(f"from_arrays got {array!r} for {name}; give arrays whose rows are examples")
            if len(array) != len(self._arrays[0]):
                raise DataError(
                    f"from_arrays got {len(self._arrays[0])} rows of {names[0]} and "
                    f"{len(array)} of {name}; give as many of each"
                )
            fields.append(Field(name, array.shape[1:], _checked_type(name, array)))
        if not fields or not len(self._arrays[0]):
            raise DataError("from_arrays got no examples")
        self.fields = tuple(fields)
        self._text_bytes = sum(_bytes_of_text(array) for array in self._arrays if array.dtype.kind == "O")

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._text_bytes

    def __len__(self) -> int:
        return len(self._arrays[0])

    def fingerprint(self) -> int:
        crc32 = 0
        for field, array in zip(self.fields, self._arrays, strict=True):
            described = f"{field.name} {array.shape} {array.dtype}"
            content = repr(array.tolist()).encode() if field.dtype.kind == "O" else _bytes_of(array)
            crc32 = isal_zlib.crc32(content, isal_zlib.crc32(described.encode(), crc32))
        return crc32

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        return [
            array[rows].astype(object) if field.dtype.kind == "O" else array[rows]
            for array, field in zip(self._arrays, self.fields, strict=True)
        ]


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _array(name: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of several lengths
        raise DataError(f"from_arrays got no array for {name}: {error}; give rows of one length") from error
    # TensorFlow knows but this machine's byte order.
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _bytes_of_text(array: np.ndarray) -> int:
    """Returns the bytes of an example's texts, by the first ones."""
    first = array[:_SAMPLED].reshape(-1)
    return sum(map(len, first)) // min(len(array), _SAMPLED)


def _checked_type(name: str, array: np.ndarray) -> np.dtype[Any]:
    if array.dtype.kind in "SU":
        return np.dtype(object)
    if array.dtype.kind in "biufc" and array.dtype.char not in "gG":  # long doubles have no tensor type
        return array.dtype
    if array.dtype.kind == "O" and all(isinstance(one, (str, bytes)) for one in array.reshape(-1)):
        return array.dtype
    raise DataError(
        f"from_arrays got an array of {array.dtype} for {name}; give numbers, booleans or text, and rows of "
        "one length"
    )
