"""Arrays as one compressed text inside JSON: a million points of a curve stay a few megabytes."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import numpy.typing as npt
from isal import isal_zlib

Numbers = npt.NDArray[Any]

_ALIGNMENT = 8  # what a typed array of JavaScript needs of its offset
_MAX_INT32 = 2**31 - 1
_LEVEL = 1  # half the size of level 0 for steps; the values themselves hardly get smaller


class Packer:
    """Puts arrays one behind the other; equal ones once.

    What `add` returns is what page.js reads: `{"t": "f4", "o": offset, "n": length}`. `d4` are 32-bit
    differences from one number to the next, the first from 0.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._known: dict[bytes, dict[str, Any]] = {}

    def add_integers(self, numbers: Numbers) -> dict[str, Any]:
        """Adds integers, exact below 2**53."""
        differences = np.diff(numbers.astype(np.int64), prepend=0)
        if len(numbers) and np.abs(differences).max() > _MAX_INT32:
            return self._add("f8", numbers.astype("<f8").tobytes(), len(numbers))
        return self._add("d4", differences.astype("<i4").tobytes(), len(numbers))

    def add_floats(self, numbers: Numbers) -> dict[str, Any]:
        """Adds numbers with 7 digits, or with all where they do not fit into 32 bits."""
        finite = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
        fits = not len(finite) or (finite.max() < np.finfo("f4").max and finite.min() > 1e-37)
        kind = "f4" if fits else "f8"
        return self._add(kind, numbers.astype(f"<{kind}").tobytes(), len(numbers))

    def packed(self) -> str:
        """Returns everything that was added: zlib, in base64."""
        return base64.b64encode(isal_zlib.compress(b"".join(self._parts), _LEVEL)).decode()

    def _add(self, kind: str, content: bytes, length: int) -> dict[str, Any]:
        key = kind.encode() + content
        if key not in self._known:
            self._known[key] = {"t": kind, "o": self._size, "n": length}
            padding = bytes(-len(content) % _ALIGNMENT)
            self._parts += [content, padding]
            self._size += len(content) + len(padding)
        return self._known[key]
