"""Curves of metrics as text, for a terminal."""

from __future__ import annotations

import math

from raydist.metrics.merge import MetricTable

_MARKERS = ("braille", "x", "o", "*", "+")  # told apart without colours


def charts(table: MetricTable, *, width: int, height: int) -> list[str]:
    """Returns a chart over steps for each metric, by name; `val_` ones share that of their metric.

    With several tasks each has a curve of its own. What is no finite number is left out.

    Args:
      width: Of a chart, in characters.
      height: In lines.
    """
    curves = _curves(table)
    tasks = {task for _, task in curves}
    charted: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for (name, task), points in curves.items():
        label = name if len(tasks) == 1 else f"{name} of {task}"
        charted.setdefault(name.removeprefix("val_"), {})[label] = points
    return [_chart(charted[name], width, height) for name in sorted(charted)]


def _curves(table: MetricTable) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Returns the points `(step, value)` of each metric of each task."""
    _, _, _, *names = table.columns
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for step, _, task, *values in table.lines:
        for name, value in zip(names, values, strict=True):
            if isinstance(value, (int, float)) and math.isfinite(value):
                curves.setdefault((name, str(task)), []).append((int(step or 0), value))
    return curves


def _chart(curves: dict[str, list[tuple[int, float]]], width: int, height: int) -> str:
    import plotext

    plotext.clear_figure()
    plotext.plotsize(width, height)
    for number, (label, points) in enumerate(curves.items()):
        steps, values = zip(*points, strict=True)
        plotext.plot(steps, values, label=label, marker=_MARKERS[number % len(_MARKERS)])
    plotext.xlabel("step")
    drawn: str = plotext.uncolorize(plotext.build())
    return "\n".join(line.rstrip() for line in drawn.splitlines())
