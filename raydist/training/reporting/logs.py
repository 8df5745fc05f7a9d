"""Keras's logs as numbers, and the scalars that custom loops report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from raydist.training.reporting import reporter
from raydist.training.reporting.reporter import Reporter

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


class LoopReports:
    """Counts the steps of a loop and reports its scalars, at most twice a second and at its end.

    Attributes:
      done: Steps that the run has behind it. `metrics`: the scalars of the last call.
    """

    def __init__(self, reporter: Reporter, *, done: int, last_step: int, check: Callable[[], None]) -> None:
        """Takes where the loop begins and ends; `check` raises what has failed alongside the training."""
        self._reporter = reporter
        self._check = check
        self._last_step = last_step
        self._reported_at_s = time.monotonic()
        self.done = done
        self.metrics: Mapping[str, float] = {}

    def completed(self, count: int, metrics: Mapping[str, float]) -> bool:
        """Takes the means of the scalars over `count` more steps; returns whether it has reported them."""
        self.done += count
        self.metrics = metrics
        self._reporter.advance(self.done, values=metrics)
        self._check()
        is_due = time.monotonic() - self._reported_at_s >= REPORT_INTERVAL_S or self.done == self._last_step
        if is_due:
            self._reported_at_s = time.monotonic()
            self._reporter.report(metrics, step=self.done)
        return is_due
