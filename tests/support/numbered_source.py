"""A source in groups whose examples are their own numbers, and which can fail."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from raydist.data.examples import Field
from raydist.data.order.windows import Piece
from raydist.data.sources.source import GroupedSource


class OneFile:
    """The file that such a source is told to have, so that it can be cached."""

    are_remote = False

    def contents(self) -> list[int]:
        return [0]

    def identity(self) -> str:
        return "one"

    def uri(self, number: int) -> str:
        return "one"


class NumberedSource(GroupedSource):
    """Examples 0, 1, 2, … in groups.

    Attributes:
      width: How often an example holds its number.
      error: What a read raises; None where it works.
      read_pieces: The pieces of every read that was begun.
      readers: The names of the threads that read.
    """

    def fingerprint(self) -> int:
        return 0

    structure = 0

    def __init__(self, sizes: Sequence[int], *, width: int = 1) -> None:
        self.group_sizes = np.array(sizes, np.int64)
        self.fields = (Field("number", (width,), np.dtype(np.int64)),)
        self.width = width
        self.error: Exception | None = None
        self.read_pieces: list[Piece] = []
        self.readers: set[str] = set()
        self._starts = np.cumsum(self.group_sizes) - self.group_sizes

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        self.read_pieces.append(piece)
        self.readers.add(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        [array] = arrays
        array[:] = (np.arange(piece.first, piece.end) + self._starts[piece.group])[:, None]
