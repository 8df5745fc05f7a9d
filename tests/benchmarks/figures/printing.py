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
    line = {
        "figure": f"{Path(sys.argv[0]).stem}.{name}",
        "value": statistics.median(values),
        "unit": unit,
        "min": min(values),
        "max": max(values),
        "rounds": len(values),
    }
    text = f"{line['figure']}: {line['value']:.4g} {unit}"
    if len(values) > 1:
        text += f" ({line['min']:.4g} to {line['max']:.4g}, {len(values)} rounds)"
    if against is not None:
        compared_with, others = against[0], _as_list(against[1])
        other = statistics.median(others)
        # Of each round, where both have as many. Else only of the medians.
        pairs = zip(values, others, strict=False) if len(values) == len(others) else ()
        ratios = [one / its for one, its in pairs if its] or [line["value"] / other]
        line |= {"compared_with": compared_with, "other": other, "ratio": line["value"] / other}
        line |= {"ratio_min": min(ratios), "ratio_max": max(ratios)}
        text += f", {line['ratio']:.3g} of {compared_with} ({other:.4g} {unit})"
    print(text, flush=True)
    if (file := os.environ.get(FILE)) is not None:
        with open(file, "a") as lines:
            lines.write(json.dumps({key: _rounded(value) for key, value in line.items()}) + "\n")


def _as_list(values: float | Sequence[float]) -> list[float]:
    return [values] if isinstance(values, (int, float)) else list(values)


def _rounded(value: object) -> object:
    """More digits than a figure has make the record hard to read."""
    return float(f"{value:.4g}") if isinstance(value, float) else value
