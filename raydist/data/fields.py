"""What one example of a source consists of: arrays in a structure of tuples and dicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


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
