"""Shares: what each worker takes of every global batch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raydist.errors import SpecError

FORM = "auto, or a whole number for each worker, in order, such as 3,1"
"""What can be written, for messages."""

MOST = 1000
_AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What each worker takes of every global batch, in proportion. Written `3,1`, or `auto`.

    Attributes:
      weights: Of worker/0, worker/1 and so on; empty where the run finds them out.
    """

    weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not all(1 <= weight <= MOST for weight in self.weights):
            raise SpecError(f"shares is {self}; each number has to be from 1 to {MOST}")

    @property
    def is_auto(self) -> bool:
        return not self.weights

    def __str__(self) -> str:
        return ",".join(map(str, self.weights)) or _AUTO

    @classmethod
    def parse(cls, text: str) -> Shares:
        """Takes `3,1` and `auto`, and what Python writes for a list or tuple."""
        if text == _AUTO:
            return cls()
        numbers = re.split(r"\s*,\s*", text.strip("[()] "))
        if not all(re.fullmatch(r"-?[0-9]{1,9}", one) for one in numbers):
            raise SpecError(f"shares is {text!r}; write {FORM}")
        return cls(weights=tuple(map(int, numbers)))
