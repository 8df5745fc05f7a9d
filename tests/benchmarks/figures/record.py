"""The record: for each figure the line that its script printed last, with date, commit and machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RECORD = Path(__file__).with_name("record.jsonl")

_PLACEHOLDER = re.compile(r"\{(\w+\.\w+)(?:\.(\w+))?(?::([^{}]+))?\}")


class UnknownFigureError(ValueError):
    """A page shows a figure that no script has printed."""


class Figures:
    """Figures by name, each as its JSON line has it."""

    def __init__(self, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self._lines = {str(line["figure"]): dict(line) for line in lines}

    @classmethod
    def read(cls, path: Path = RECORD) -> Figures:
        return cls(map(json.loads, path.read_text().splitlines()))

    def with_lines(self, lines: Iterable[Mapping[str, Any]]) -> Figures:
        """Returns these figures, and in the place of those that were measured again the new ones."""
        return Figures([*self._lines.values(), *lines])

    def write(self, path: Path = RECORD) -> None:
        lines = (json.dumps(self._lines[name]) + "\n" for name in sorted(self._lines))
        path.write_text("".join(lines))

    def fill(self, template: str) -> str:
        """Puts figures in the place of `{script.name}`, `{script.name.ratio}` or `{script.name.max:.1f}`.

        Raises:
          UnknownFigureError: The record lacks a figure or the part of it that is asked for.
        """
        return _PLACEHOLDER.sub(lambda match: self._shown(match), template)

    def _shown(self, match: re.Match[str]) -> str:
        name, part, form = match.groups()
        value = self._lines.get(name, {}).get(part or "value")
        if value is None:
            command = f"python -m tests.benchmarks {name.partition('.')[0]} --write"
            raise UnknownFigureError(f"{match[0]}: no script has printed it; run `{command}`")
        return format(value, form) if form else shown(value)


def shown(value: float) -> str:
    """Returns a number as the pages show it unless they say how: all of an int, two or three digits else."""
    size = abs(value)
    if isinstance(value, int) or size >= 19.95:
        return f"{float(f'{value:.3g}') if size >= 100 and isinstance(value, float) else value:,.0f}"
    if size >= 1.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.0195 or not size else f"{value:.1g}"


def placeholders(template: str) -> list[str]:
    return [match[0] for match in _PLACEHOLDER.finditer(template)]


def as_pattern(template: str) -> re.Pattern[str]:
    """Returns what finds a template's text in a page, with any numbers: a group for each placeholder."""
    texts = _PLACEHOLDER.split(template)[:: _PLACEHOLDER.groups + 1]
    literal = [r"\s+".join(map(re.escape, text.split(" "))) for text in texts]  # lines are wrapped anywhere
    return re.compile(r"(\d[\d.,]*(?<![.,]))".join(literal))
