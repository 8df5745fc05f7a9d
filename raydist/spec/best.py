"""The best value of a run's metric: which metric it is, and which value is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_USUAL = ("val_loss", "loss")


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best value of a metric.

    Attributes:
      name: The metric.
      step: The step that it was first reported at.
    """

    name: str
    value: float
    step: int


def best_of(
    before: Best | None, metrics: Mapping[str, float], *, step: int, keep_best: str | None
) -> Best | None:
    """Returns the best value once `metrics` were reported.

    It is a value of `keep_best`; if that is None, of `val_loss`, else `loss`, else of the metric that was
    reported first. A metric that is preferred replaces the one before. Values that are no finite numbers
    are never best.
    """
    known = () if before is None else (before.name,)
    wanted = (keep_best,) if keep_best is not None else (*_USUAL, *known, *metrics)
    name = next((one for one in wanted if one in metrics or one in known), None)
    if name is None or not math.isfinite(value := metrics.get(name, math.nan)):
        return before
    return better(before, Best(name=name, value=value, step=step))


def better(before: Best | None, after: Best | None) -> Best | None:
    """Returns the better one of two; the earlier among equals.

    Of two metrics it is the later one, but `loss` does not replace `val_loss`: a new attempt may report it
    first.
    """
    if before is None or after is None:
        return after or before
    if before.name != after.name:
        return before if (before.name, after.name) == _USUAL else after
    return after if sign_of(after.name) * (after.value - before.value) < 0 else before


def sign_of(name: str) -> float:
    """Returns 1.0 for a metric of which the least is best (`loss` or `error` in its name), else -1.0."""
    return 1.0 if "loss" in name or "error" in name else -1.0


def best_step(values: Iterable[tuple[float | None, int]], name: str) -> int | None:
    """Returns the step with the best of (value, step), the earliest among equals; None if none is finite."""
    finite = [(value, step) for value, step in values if value is not None and math.isfinite(value)]
    return min(finite, key=lambda pair: (sign_of(name) * pair[0], pair[1]))[1] if finite else None
