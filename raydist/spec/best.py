"""The best value of a run's metric: which metric it is, and which value is better."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raydist.errors import SpecError

_USUAL = ("val_loss", "loss")


class Direction(enum.Enum):
    """Which values of a metric are better, as in `--keep-best NAME:max` and `NAME:min`."""

    HIGHEST = "max"
    LOWEST = "min"


# What the names of metrics contain: words, and short ones that are a whole part of a name. Every metric of
# Keras 3 and tf_keras that has a direction contains one (tests/spec/test_best.py).
_WORDS = {
    Direction.HIGHEST: "accuracy|precision|recall|sensitivity|specificity|similarity|correlation|fmeasure",
    Direction.LOWEST: "loss|error|perplexity|cross_?entropy|hinge|divergence|poisson|log_?cosh|huber",
}
_PARTS = {
    Direction.HIGHEST: (
        r"acc|auc|auroc|auprc|(?:mean|m)?_?io_?u|f\d(?:_?score)?|f_?beta(?:_?score)?|f_?score|f_measure|"
        r"r2(?:_?score)?|r_?squared|top_?(?:k|\d+)"
    ),
    Direction.LOWEST: "mae|s?mape|n?r?mse|r?msle|b?ce|kld?|nll",
}
_PATTERNS = {
    direction: re.compile(f"{_WORDS[direction]}|(?<![a-z0-9])(?:{_PARTS[direction]})(?![a-z0-9])")
    for direction in Direction
}


def direction_of(name: str) -> Direction | None:
    """Returns which values of a metric are better by its name, None where the name does not say it.

    What comes last in the name decides, because Keras puts the name of an output first: among the values of
    `loss_head_accuracy` the highest is best.
    """
    found = [
        (match.end(), -match.start(), direction.value)
        for direction, pattern in _PATTERNS.items()
        for match in pattern.finditer(name.lower())
    ]
    return Direction(max(found)[2]) if found else None


def parse_keep_best(text: str) -> tuple[str, Direction | None]:
    """Returns the metric that `--keep-best` names, and which of its values are better; None if unknown."""
    name, _, direction = text.rpartition(":")
    if name and direction in [one.value for one in Direction]:
        return name, Direction(direction)
    return text, direction_of(text)


def is_of_validation(name: str) -> bool:
    """Whether a metric, as `--keep-best` names it, is one that a run's evaluator reports."""
    return name.startswith("val_")


def check_keep_best(option: str, value: object) -> str:
    """Returns what was written for `--keep-best`.

    Raises:
      SpecError: It is not text, or neither it nor the metric's name says which values are better.
    """
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{option} is {value!r}; write the name of a metric, such as val_accuracy")
    if parse_keep_best(value)[1] is None:
        raise SpecError(
            f"{option} is {value!r}, and that name does not say which values are better; write {value}:max "
            f"if the highest value is best, or {value}:min if the lowest is"
        )
    return value


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

    It is a value of the metric of `keep_best`; if that is None, of `val_loss`, else `loss`, else of the
    metric that was reported first. A metric that is preferred replaces the one before. Values that are no
    finite numbers are never best.
    """
    known = () if before is None else (before.name,)
    wanted = (*_USUAL, *known, *metrics) if keep_best is None else (parse_keep_best(keep_best)[0],)
    name = next((one for one in wanted if one in metrics or one in known), None)
    if name is None or not math.isfinite(value := metrics.get(name, math.nan)):
        return before
    return better(before, Best(name=name, value=value, step=step), keep_best=keep_best)


def better(before: Best | None, after: Best | None, *, keep_best: str | None) -> Best | None:
    """Returns the better one of two; the earlier among equals.

    Of two metrics it is the later one, but `loss` does not replace `val_loss`: a new attempt may report it
    first.
    """
    if before is None or after is None:
        return after or before
    if before.name != after.name:
        return before if (before.name, after.name) == _USUAL else after
    return after if _sign_of(after.name, keep_best) * (after.value - before.value) < 0 else before


def best_step(values: Iterable[tuple[float | None, int]], keep_best: str) -> int | None:
    """Returns the step with the best of (value, step), the earliest among equals; None if none is finite.

    Args:
      values: Of the metric of `keep_best`.
    """
    sign = _sign_of(parse_keep_best(keep_best)[0], keep_best)
    finite = [(value, step) for value, step in values if value is not None and math.isfinite(value)]
    return min(finite, key=lambda pair: (sign * pair[0], pair[1]))[1] if finite else None


def _sign_of(name: str, keep_best: str | None) -> float:
    """Returns 1.0 for a metric of which the lowest value is best, else -1.0, also where that is unknown."""
    asked, direction = (None, None) if keep_best is None else parse_keep_best(keep_best)
    return 1.0 if (direction if name == asked else direction_of(name)) is Direction.LOWEST else -1.0
