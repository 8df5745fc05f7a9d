"""Examples: what batches are made of, wherever it is read from, and what one example consists of.

An example is a structure of tuples and dicts whose leaves are arrays: its fields.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from raydist.data.order.windows import Piece


@dataclass(frozen=True)
class Field:
    """One array of each example.

    Attributes:
      shape: Of one example.
      dtype: `object` for bytes.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def num_bytes(self) -> int:
        """The size of one example, estimated for bytes."""
        return 64 if self.dtype.kind == "O" else math.prod(self.shape) * self.dtype.itemsize

    def blank(self, *sizes: int) -> np.ndarray:
        """Returns an array `[*sizes, ...]` of zeros, or of empty texts."""
        whole = (*sizes, *self.shape)
        return np.full(whole, b"", object) if self.dtype.kind == "O" else np.zeros(whole, self.dtype)


def leaves(structure: Any) -> list[Any]:
    """Returns what stands at the ends of a structure, in TensorFlow's order: a dict's by sorted keys."""
    if isinstance(structure, Mapping):
        return [leaf for key in sorted(structure) for leaf in leaves(structure[key])]
    if isinstance(structure, tuple):
        return [leaf for part in structure for leaf in leaves(part)]
    return [structure]


def with_leaves(structure: Any, values: Sequence[Any]) -> Any:
    """Returns the structure with `values` at its ends, in the order of `leaves`."""
    rest = iter(values)
    return _mapped(structure, lambda _: next(rest))


def names_of(structure: Any, prefix: str = "") -> list[str]:
    """Returns a name for each end, such as `x` or `1.label`."""
    if isinstance(structure, Mapping):
        pairs: list[tuple[Any, Any]] = [(key, structure[key]) for key in sorted(structure)]
    elif isinstance(structure, tuple):
        pairs = list(enumerate(structure))
    else:
        return [prefix or "0"]
    return [name for key, part in pairs for name in names_of(part, f"{prefix}.{key}" if prefix else f"{key}")]


def _mapped(structure: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(structure, Mapping):
        changed = {key: _mapped(structure[key], change) for key in sorted(structure)}
        return {key: changed[key] for key in structure}
    if isinstance(structure, tuple):
        return tuple(_mapped(part, change) for part in structure)
    return change(structure)


class Files(Protocol):
    """The files of a source, numbered."""

    @property
    def are_remote(self) -> bool:
        """Whether they have to be asked for, as in an object store."""

    def contents(self) -> Sequence[int]:
        """Returns a number for the name, size and content of each, below 2**32; alike where these are."""

    def identity(self) -> str:
        """Returns a text that is another one where a file is another one, or was written again."""

    def uri(self, number: int) -> str:
        """Returns where a file is."""


class Examples(abc.ABC):
    """Examples of a known number, each a structure of arrays, that can be read from any position.

    Attributes:
      fields: What one example consists of.
      structure: Tuples and dicts whose ends stand for the fields, in their order.
      group_sizes: For examples that are cheap to read only in groups, the examples of each, int64
        `[groups]`; None where any of them is as cheap as any other.
      files: What they are read from, where that is files.
      class_names: What each label stands for, where labels are the numbers of folders.
      most_at_once: How many are read by one call at most, where each takes long. The order does not depend on
        it.
      decodes: Whether `decode` is more than a change of structure.
      options: What else the examples depend on, beside the files and what `decode` does.
    """

    fields: tuple[Field, ...]
    structure: Any
    group_sizes: np.ndarray | None = None
    files: Files | None = None
    class_names: Sequence[str] = ()
    most_at_once: int | None = None
    decodes: bool = False
    options: str = ""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of examples."""

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the examples of these numbers (int64 `[n]`), one array `[n, ...]` for each field.

        Only for a source without groups. Raises DataError where it cannot be read.
        """
        raise NotImplementedError(f"{type(self).__name__} is not read by single examples")

    def read(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """Returns the examples of some pieces of groups, as `read_into` reads them."""
        arrays = self.room(sum(piece.num_rows for piece in pieces))
        first = 0
        for piece in pieces:
            self.read_into([array[first : first + piece.num_rows] for array in arrays], piece)
            first += piece.num_rows
        return arrays

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        """Writes the examples of a piece of a group into one array `[n, ...]` for each field.

        Only for a source with groups. Raises DataError, naming file, group and column.
        """
        raise NotImplementedError(f"{type(self).__name__} has no groups")

    def room(self, num_examples: int) -> list[np.ndarray]:
        """Returns arrays for so many examples, one `[num_examples, ...]` for each field."""
        return [np.empty((num_examples, *field.shape), field.dtype) for field in self.fields]

    @abc.abstractmethod
    def fingerprint(self) -> int:
        """Returns a number that differs, in all likelihood, where the examples or their order do.

        Below 2**32, and alike on every host that sees the same data.
        """

    @property
    def num_bytes(self) -> int:
        """The size of one example in memory, estimated where it is not fixed."""
        return max(1, sum(field.num_bytes for field in self.fields))

    def decode(self, values: Sequence[Any]) -> Any:
        """Turns tensors `[n, ...]`, one for each field, into a batch. Runs in a TensorFlow graph."""
        return with_leaves(self.structure, values)
