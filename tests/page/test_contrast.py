"""The colours of the page, by WCAG 2.2 AA: text 4.5 to 1 on what lies behind it, lines and bars 3 to 1."""

from __future__ import annotations

import re

import pytest

from raydist.page.html import style

TEXT = ("ink", "muted", "link", "good", "bad", "live", "warn")
SHAPES = (*(f"line-{index}" for index in range(8)), "waiting", "starting", "running", "attempt", "fit")
_LIGHT, _DARK = (
    dict(re.findall(r"--([\w-]+): (#\w+)", block)) for block in re.findall(r":root \{[^}]*", style())
)
SCHEMES = {"light": _LIGHT, "dark": {**_LIGHT, **_DARK}}


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    shares = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#fff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", TEXT)
def test_text_can_be_read_on_each_background(scheme: str, name: str) -> None:
    colors = SCHEMES[scheme]
    found = {
        back: contrast(colors[name], colors[back])
        for back in ("page", "panel", "grid", "warn-page", "bad-page")
    }
    assert {back: ratio for back, ratio in found.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", [*SHAPES, "checkpoint"])
def test_lines_and_bars_can_be_told_from_what_lies_behind_them(scheme: str, name: str) -> None:
    colors = SCHEMES[scheme]
    backs = ["panel"] if name == "checkpoint" else ["panel", "grid"]
    assert min(contrast(colors[name], colors[back]) for back in backs) >= 3


@pytest.mark.parametrize("scheme", SCHEMES)
def test_buttons_that_are_pressed_or_first_can_be_read(scheme: str) -> None:
    colors = SCHEMES[scheme]
    assert min(contrast(colors["panel"], colors[back]) for back in ("ink", "link")) >= 4.5
