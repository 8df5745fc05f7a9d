"""Shares: what each worker takes of every global batch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raydist.errors import SpecError

FORM = "a whole number for each worker, in order, such as 3,1"
"""What can be written, for messages."""

MOST = 1000


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What each worker takes of every global batch, in proportion. Written `3,1`.

    Attributes:
      weights: Of worker/0, worker/1 and so on.
    """

    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if not all(1 <= weight <= MOST for weight in self.weights):
            raise SpecError(f"shares is {self}; each number has to be from 1 to {MOST}")

    def __str__(self) -> str:
        return ",".join(map(str, self.weights))

    @classmethod
    def parse(cls, text: str) -> Shares:
        """Takes `3,1`, and what Python writes for a list or tuple."""
        numbers = re.split(r"\s*,\s*", text.strip("[()] "))
        if not all(re.fullmatch(r"-?[0-9]{1,9}", one) for one in numbers):
            raise SpecError(f"shares is {text!r}; write {FORM}")
        return cls(weights=tuple(map(int, numbers)))
