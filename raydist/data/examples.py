"""Examples: what batches are made of, wherever it is read from."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from raydist.data.fields import Field, with_leaves
from raydist.data.order.windows import Piece


class Files(Protocol):
    """The files of a source, numbered."""

    @property
    def are_remote(self) -> bool:
        """Whether they have to be asked for, as in an object store."""

    def contents(self) -> Sequence[int]:
        """Returns a number for the name, size and content of each, below 2**32; alike where these are."""

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
    """

    fields: tuple[Field, ...]
    structure: Any
    group_sizes: np.ndarray | None = None
    files: Files | None = None

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of examples."""

    @abc.abstractmethod
    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the examples of these numbers (int64 `[n]`), one array `[n, ...]` for each field.

        Only for a source without groups. Raises DataError where it cannot be read.
        """

    def read(self, pieces: Sequence[Piece]) -> list[np.ndarray]:
        """Returns the examples of some pieces of groups, as `read_into` reads them."""
        arrays = self.room(sum(piece.num_rows for piece in pieces))
        first = 0
        for piece in pieces:
            self.read_into([array[first : first + piece.num_rows] for array in arrays], piece)
            first += piece.num_rows
        return arrays

    @abc.abstractmethod
    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        """Writes the examples of a piece of a group into one array `[n, ...]` for each field.

        Only for a source with groups. Raises DataError, naming file, group and column.
        """

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

    @property
    def decodes(self) -> bool:
        """Whether `decode` is more than a change of structure."""
        return False

    def decode(self, values: Sequence[Any]) -> Any:
        """Turns tensors `[n, ...]`, one for each field, into a batch. Runs in a TensorFlow graph."""
        return with_leaves(self.structure, values)
