"""Pictures of what `raydist compare` has measured, as SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from raydist.runs.scaling import Measurement
from raydist.runs.strategies_compared import StrategyRun

_PANEL, _HEIGHT, _LEFT, _TOP = 300, 220, 46, 34
_WIDTH = 2 * (_PANEL + _LEFT) + 200
_BLUE, _ORANGE, _GREEN, _GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#999"
_COLOURS = (_BLUE, _ORANGE, _GREEN, "#d62728", "#9467bd", "#8c564b")
# More points of a curve cannot be told apart.
_MOST_POINTS = 200

Points = Sequence[tuple[float, float]]


def scaling_picture(title: str, one_device: Measurement, runs: Sequence[Measurement]) -> str:
    """Returns an SVG file: on the left the speed-up and the ideal line, on the right shares of a step."""
    others = [one for one in runs if one is not one_device]
    return _picture(title, [*_speed_ups(one_device, runs), *_shares([one_device, *others])])


def loss_picture(title: str, runs: Sequence[StrategyRun]) -> str:
    """Returns an SVG file: the loss by examples on the left, or by steps, and by seconds on the right."""
    names = [one.measurement.strategy for one in runs]
    batches = [one.measurement.batch for one in runs]
    has_examples = all(batches)
    by_step = [
        [(step * (batch or 1) if has_examples else step, loss) for step, loss in _known(one, one.curve.steps)]
        for one, batch in zip(runs, batches, strict=True)
    ]
    by_second = [_known(one, one.curve.seconds) for one in runs]
    return _picture(
        title,
        [
            *_curves(by_step, left=_LEFT, label="loss by examples" if has_examples else "loss by steps"),
            *_curves(by_second, left=_PANEL + 2 * _LEFT + 20, label="loss by seconds since the first report"),
            *_legend(list(zip(names, _COLOURS, strict=False)), left=2 * (_PANEL + _LEFT) + 28),
        ],
    )


def _picture(title: str, drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT + _TOP + 48}" '
        'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<text x="{_LEFT}" y="16" font-weight="bold">{html.escape(title)}</text>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _known(one: StrategyRun, places: Sequence[float]) -> list[tuple[float, float]]:
    """Returns the places at which there is a loss that a logarithm has, thinned out, and the losses."""
    points = [
        (place, loss)
        for place, loss in zip(places, one.curve.losses, strict=True)
        if loss is not None and loss > 0 and math.isfinite(loss)
    ]
    return [*points[: -1 : -(-len(points) // _MOST_POINTS) or 1], *points[-1:]]


def _curves(curves: Sequence[Points], *, left: float, label: str) -> list[str]:
    """Draws curves with a logarithmic vertical axis."""
    drawn = [_axes(left), _text(left + _PANEL / 2, _TOP + _HEIGHT + 36, label)]
    known = [point for points in curves for point in points]
    if not known:
        return drawn
    end = max(place for place, _ in known) or 1.0
    lowest, highest = min(loss for _, loss in known), max(loss for _, loss in known)
    span = math.log(highest / lowest) or 1.0
    for points, colour in zip(curves, _COLOURS, strict=False):
        places = " ".join(
            f"{left + _PANEL * place / end:.1f},{_TOP + _HEIGHT * math.log(highest / loss) / span:.1f}"
            for place, loss in points
        )
        drawn.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return [
        *drawn,
        _text(left + _PANEL, _TOP + _HEIGHT + 16, f"{end:,.0f}" if end >= 1000 else f"{end:.3g}"),
        _text(left - 20, _TOP + 4, f"{highest:.2g}"),
        _text(left - 20, _TOP + _HEIGHT, f"{lowest:.2g}"),
    ]


def _axes(left: float) -> str:
    corner, bottom = f"{left:.1f},{_TOP}", _TOP + _HEIGHT
    path = f"M{corner} L{left:.1f},{bottom} L{left + _PANEL:.1f},{bottom}"
    return f'<path d="{path}" fill="none" stroke="{_GREY}"/>'


def _speed_ups(one_device: Measurement, runs: Sequence[Measurement]) -> list[str]:
    points = [(one.workers, one.speed_up(one_device) or 0.0) for one in runs]
    most = max(workers for workers, _ in points)
    highest = max(most, *(speed_up for _, speed_up in points))

    def place(workers: float, speed_up: float) -> str:
        return f"{_LEFT + _PANEL * workers / most:.1f},{_TOP + _HEIGHT * (1 - speed_up / highest):.1f}"

    drawn = [
        _axes(_LEFT),
        f'<path d="M{place(0, 0)} L{place(most, most)}" stroke="{_GREY}" stroke-dasharray="4"/>',
        f'<polyline points="{" ".join(place(*one) for one in points)}" fill="none" stroke="{_BLUE}" '
        'stroke-width="2"/>',
        _text(_LEFT + _PANEL / 2, _TOP + _HEIGHT + 36, "workers: speed-up (ideal is dashed)"),
    ]
    for workers, speed_up in points:
        x, y = place(workers, speed_up).split(",")
        drawn += [
            f'<circle cx="{x}" cy="{y}" r="4" fill="{_BLUE}"/>',
            _text(float(x), float(y) - 8, f"{speed_up:.2f}"),
            _text(float(x), _TOP + _HEIGHT + 16, str(workers)),
        ]
    return drawn


def _shares(runs: Sequence[Measurement]) -> list[str]:
    left, width = _PANEL + 2 * _LEFT + 20, _PANEL / len(runs)
    drawn = [_text(left + _PANEL / 2, _TOP + _HEIGHT + 36, "time of a step")]
    for place, one in enumerate(runs):
        x, y = left + place * width, float(_TOP + _HEIGHT)
        waits = ((one.collective_wait or 0.0, _ORANGE), (one.input_wait or 0.0, _GREEN))
        rest = max(0.0, 1.0 - sum(share for share, _ in waits))
        total = max(1.0, sum(share for share, _ in waits))
        for share, colour in ((rest, _BLUE), *waits):
            tall = _HEIGHT * share / total
            y -= tall
            drawn.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{0.8 * width:.1f}" height="{tall:.1f}" '
                f'fill="{colour}"/>'
            )
        drawn.append(_text(x + 0.4 * width, _TOP + _HEIGHT + 16, one.name))
    words = [("input", _GREEN), ("all-reduce", _ORANGE), ("compute", _BLUE)]
    return [*drawn, *_legend(words, left=left + _PANEL + 8)]


def _legend(words: Sequence[tuple[str, str]], *, left: float) -> list[str]:
    drawn = []
    for row, (word, colour) in enumerate(words):
        x, y = left, _TOP + 16 * row
        drawn.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 16}" y="{y + 10}">{html.escape(word)}</text>')
    return drawn


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{html.escape(text)}</text>'
