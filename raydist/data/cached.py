"""CachedExamples: keeps what was read in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from raydist.data.examples import Examples
from raydist.data.order.windows import Piece


class CachedExamples(Examples):
    """Examples of which each is read once in this process."""

    def __init__(self, source: Examples) -> None:
        self._source = source
        self.fields = source.fields
        self.structure = source.structure
        self.group_sizes = source.group_sizes
        self.files = source.files
        self._lock = threading.Lock()
        self._groups: dict[int, list[np.ndarray]] = {}
        self._taken: list[np.ndarray] = []  # each field of all examples, once the first are read
        self._is_taken = np.zeros(0, bool)

    def __reduce__(self) -> tuple[type[CachedExamples], tuple[Examples]]:
        return CachedExamples, (self._source,)  # elsewhere it is read again

    def __len__(self) -> int:
        return len(self._source)

    def fingerprint(self) -> int:
        return self._source.fingerprint()

    @property
    def num_bytes(self) -> int:
        return self._source.num_bytes

    @property
    def decodes(self) -> bool:
        return self._source.decodes

    def decode(self, values: Sequence[Any]) -> Any:
        return self._source.decode(values)

    def take(self, rows: np.ndarray) -> list[np.ndarray]:
        with self._lock:
            if not self._taken:
                self._taken = [np.empty((len(self), *field.shape), field.dtype) for field in self.fields]
                self._is_taken = np.zeros(len(self), bool)
            missing = np.unique(rows[~self._is_taken[rows]])
            if len(missing):
                for kept, found in zip(self._taken, self._source.take(missing), strict=True):
                    kept[missing] = found
                self._is_taken[missing] = True
            return [array[rows] for array in self._taken]

    def read_into(self, arrays: Sequence[np.ndarray], piece: Piece) -> None:
        for array, whole in zip(arrays, self._group(piece.group), strict=True):
            array[:] = whole[piece.first : piece.end]

    def _group(self, group: int) -> list[np.ndarray]:
        with self._lock:
            if group not in self._groups:
                assert self.group_sizes is not None
                whole = Piece(group, 0, int(self.group_sizes[group]))
                self._groups[group] = self._source.read([whole])
            return self._groups[group]
