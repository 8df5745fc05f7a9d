"""How a benchmark prints a figure: a line for people, and a JSON line for `python -m tests.benchmarks`."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

# The file that takes the JSON lines; if it is not set, only people read the figures.
FILE = "RAYDIST_BENCHMARK_FIGURES"


def figure(
    name: str,
    values: float | Sequence[float],
    unit: str,
    *,
    against: tuple[str, float | Sequence[float]] | None = None,
) -> None:
    """Prints the median of the rounds with minimum and maximum, and its ratio to what it is compared with.

    Args:
      name: Unique in its script; the guide shows the figure as `{script.name}`.
      values: One for each round.
      against: What the figure is compared with, and the values of that, measured in turn.
    """
    values = _as_list(values)
    value = statistics.median(values)
    line: dict[str, object] = {
        "figure": f"{Path(sys.argv[0]).stem}.{name}",
        "value": value,
        "unit": unit,
        "min": min(values),
        "max": max(values),
        "rounds": len(values),
    }
    text = f"{line['figure']}: {value:.4g} {unit}"
    if len(values) > 1:
        text += f" ({min(values):.4g} to {max(values):.4g}, {len(values)} rounds)"
    if against is not None:
        compared_with, others = against[0], _as_list(against[1])
        other = statistics.median(others)
        # Of each round, where both have as many. Else only of the medians.
        pairs = zip(values, others, strict=True) if len(values) == len(others) else [(value, other)]
        ratios = [one / its for one, its in pairs]
        line |= {"compared_with": compared_with, "other": other, "ratio": value / other}
        line |= {"ratio_min": min(ratios), "ratio_max": max(ratios)}
        text += f", {value / other:.3g} of {compared_with} ({other:.4g} {unit})"
    print(text, flush=True)
    if (file := os.environ.get(FILE)) is not None:
        with open(file, "a") as lines:
            lines.write(json.dumps({key: _rounded(value) for key, value in line.items()}) + "\n")


def _as_list(values: float | Sequence[float]) -> list[float]:
    return [values] if isinstance(values, (int, float)) else list(values)


def _rounded(value: object) -> object:
    """More digits than a figure has make the record hard to read."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
