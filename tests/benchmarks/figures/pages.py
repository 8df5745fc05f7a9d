"""The pages that show figures: what they say by the record, and numbers in them that it does not have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.benchmarks.figures.quoted import LIMITS, NOT_MEASURED, QUOTED
from tests.benchmarks.figures.record import Figures, as_pattern, placeholders
from tests.support.guide import FENCE, FOLDER, INLINE_CODE, PAGES

TEMPLATE = Path(__file__).with_name("figures.md")
PAGE = FOLDER / "figures.md"

_NUMBER = r"(?<![\w.,/-])\d[\d.,]*"
# Whole seconds and minutes are mostly limits that somebody sets.
_MEASURED = rf"{_NUMBER} ?(?:times|%|ms|µs|ns|[kMG]B|\w+/s)(?!\w)|{_NUMBER} of (?:the|its) time|\d\.\d+ ?s\b"
# On pages that mostly consist of figures.
_FULL_OF_FIGURES = ("figures.md", "scaling.md")
_ANY = rf"{_MEASURED}|{_NUMBER} (?:s|seconds|minutes)\b|(?<![\w.])\d+\.\d+"


class QuoteError(ValueError):
    """A text that pages.py looks for is not in its page."""


def written(figures: Figures) -> dict[Path, str]:
    """Returns each page as the record wants it.

    Raises:
      UnknownFigureError: A page shows a figure that no script has printed.
      QuoteError: A page lacks a text that quoted.py lists.
    """
    pages = {PAGE: figures.fill(TEMPLATE.read_text())}
    for page in PAGES:
        if quotes := QUOTED.get(page.name):
            pages[page] = with_quotes(page.read_text(), quotes, figures)
    return pages


def with_quotes(text: str, quotes: Sequence[str], figures: Figures) -> str:
    """Returns a page's text with the numbers of all quotes as the record has them."""
    for quote in quotes:
        match = _find(quote, text)
        numbers = [figures.fill(one) for one in placeholders(quote)]
        for index, number in reversed(list(enumerate(numbers, start=1))):
            text = text[: match.start(index)] + number + text[match.end(index) :]
    return text


def without_origin(page: Path) -> list[str]:
    """Returns the numbers of a page that look measured, but that neither a script nor quoted.py knows."""
    text = TEMPLATE.read_text() if page == PAGE else page.read_text()
    pattern = _ANY if page.name in _FULL_OF_FIGURES else _MEASURED
    return unaccounted(text, QUOTED.get(page.name, ()), NOT_MEASURED.get(page.name, {}), pattern=pattern)


def unaccounted(
    text: str, quotes: Sequence[str], not_measured: Mapping[str, str], *, pattern: str = _MEASURED
) -> list[str]:
    """Returns the numbers that look measured outside of code, quotes and texts that are not measured."""
    text = INLINE_CODE.sub("", FENCE.sub("", text))
    for known in (*quotes, *not_measured):
        match = _find(INLINE_CODE.sub("", known), text)
        text = text[: match.start()] + text[match.end() :]
    for name in placeholders(text):
        text = text.replace(name, "")
    return [found for found in re.findall(pattern, text) if found not in LIMITS]


def _find(known: str, text: str) -> re.Match[str]:
    found = list(as_pattern(known).finditer(text))
    if len(found) != 1:
        raise QuoteError(
            f"{known!r} of tests/benchmarks/figures/quoted.py is in its page {len(found)} times, not once"
        )
    return found[0]
