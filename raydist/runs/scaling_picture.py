"""The picture of `raydist scale`: speed-up against workers, and where the time of a step goes, as SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence

from raydist.runs.scaling import Measurement

_PANEL, _HEIGHT, _LEFT, _TOP = 300, 220, 46, 34
_WIDTH = 2 * (_PANEL + _LEFT) + 130
_BLUE, _ORANGE, _GREEN, _GREY = "#1f77b4", "#ff7f0e", "#2ca02c", "#999"


def picture(title: str, one_device: Measurement, runs: Sequence[Measurement]) -> str:
    """Returns an SVG file: on the left the speed-up and the ideal line, on the right shares of a step."""
    drawn = [
        f'<text x="{_LEFT}" y="16" font-weight="bold">{html.escape(title)}</text>',
        *_speed_ups(one_device, runs),
        *_shares([one_device, *(one for one in runs if one is not one_device)]),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT + _TOP + 48}" '
        'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        + "\n".join(drawn)
        + "\n</svg>\n"
    )


def _speed_ups(one_device: Measurement, runs: Sequence[Measurement]) -> list[str]:
    points = [(one.workers, one.speed_up(one_device) or 0.0) for one in runs]
    most = max(workers for workers, _ in points)
    highest = max(most, *(speed_up for _, speed_up in points))

    def place(workers: float, speed_up: float) -> str:
        return f"{_LEFT + _PANEL * workers / most:.1f},{_TOP + _HEIGHT * (1 - speed_up / highest):.1f}"

    drawn = [
        f'<path d="M{place(0, highest)} L{place(0, 0)} L{place(most, 0)}" fill="none" stroke="{_GREY}"/>',
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
    for row, (word, colour) in enumerate((("input", _GREEN), ("all-reduce", _ORANGE), ("compute", _BLUE))):
        x, y = left + _PANEL + 8, _TOP + 16 * row
        drawn.append(f'<rect x="{x}" y="{y}" width="10" height="10" fill="{colour}"/>')
        drawn.append(f'<text x="{x + 16}" y="{y + 10}">{word}</text>')
    return drawn


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{html.escape(text)}</text>'
