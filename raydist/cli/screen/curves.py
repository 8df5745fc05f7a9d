"""Curves of metrics as text, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Points = Sequence[tuple[int, float]]

_MARKERS = ("braille", "x", "o", "*", "+")  # told apart without colours


def charts(
    curves: Mapping[tuple[str, str], Points], *, marks: Sequence[int] = (), width: int, height: int
) -> list[str]:
    """Returns a chart over steps for each metric, by name; `val_` ones share that of their metric.

    With several tasks each has a curve of its own.

    Args:
      curves: The points `(step, value)` of each (metric, task).
      marks: Steps at which to draw a vertical line.
      width: Of a chart, in characters.
      height: In lines.
    """
    tasks = {task for _, task in curves}
    charted: dict[str, dict[str, Points]] = {}
    for (name, task), points in curves.items():
        label = name if len(tasks) == 1 else f"{name} of {task}"
        charted.setdefault(name.removeprefix("val_"), {})[label] = points
    return [_chart(charted[name], marks, width, height) for name in sorted(charted)]


def _chart(curves: Mapping[str, Points], marks: Sequence[int], width: int, height: int) -> str:
    import plotext

    plotext.clear_figure()
    plotext.plotsize(width, height)
    for number, (label, points) in enumerate(curves.items()):
        steps, values = zip(*points, strict=True)
        plotext.plot(steps, values, label=label, marker=_MARKERS[number % len(_MARKERS)])
    shown = [step for points in curves.values() for step, _ in (points[0], points[-1])]
    for step in marks:
        if min(shown) < step < max(shown):
            plotext.vline(step)
    plotext.xlabel("step")
    drawn: str = plotext.uncolorize(plotext.build())
    return "\n".join(line.rstrip() for line in drawn.splitlines())
