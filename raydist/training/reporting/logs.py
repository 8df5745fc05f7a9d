"""Keras's logs as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raydist.training.reporting import reporter

# How often a task records its own running values, and a loop its scalars.
REPORT_INTERVAL_S = 0.5
# Of an array that reports take element by element.
_MOST_ELEMENTS = 100


def numbers(logs: Any) -> dict[str, Any]:
    """Returns the numbers of Keras's logs: floats, and NumPy arrays of metrics that return several.

    The values of a metric that returns a dict have the dict's names, as in Keras 3's history. A complex
    number is an array of its real and imaginary part.
    """
    found: dict[str, Any] = {}
    for name, value in dict(logs or {}).items():
        if isinstance(value, Mapping):
            found |= numbers(value)
            continue
        array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
        if array.dtype.kind == "c":
            array = np.stack([array.real, array.imag], axis=-1)
        if array.ndim == 0:
            found[name] = float(array)
        elif array.dtype.kind in "biuf":
            found[name] = array
    return found


def floats(logs: Any) -> dict[str, float]:
    """Returns the numbers of Keras's logs as reports take them, see `by_element`."""
    return by_element(numbers(logs))


def by_element(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns numbers with each array by its elements: `f1_score/0`, `f1_score/1`; of a matrix `name/0/1`.

    Large arrays are left out, with a note.
    """
    found: dict[str, float] = {}
    for name, value in values.items():
        if np.ndim(value) == 0:
            found[name] = value
        elif np.size(value) > _MOST_ELEMENTS:
            reporter.note(
                f"{name} has {np.size(value)} values; reports, metrics and TensorBoard take those of at most "
                f"{_MOST_ELEMENTS}, and leave it out"
            )
        else:
            array = np.asarray(value)
            found |= {f"{name}/{'/'.join(map(str, at))}": float(array[at]) for at in np.ndindex(array.shape)}
    return found
