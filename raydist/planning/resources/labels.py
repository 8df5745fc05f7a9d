"""Labels of hosts, and what a task wants of them, as Ray's label selectors say it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_IN = re.compile(r"(?P<negation>!?)in\((?P<values>[^()]*)\)")


def fulfils(labels: Mapping[str, str], selector: Iterable[tuple[str, str]]) -> bool:
    """Whether a host's labels are what a task wants of each."""
    return all(matches(labels.get(label), wanted) for label, wanted in selector)


def matches(label: str | None, wanted: str) -> bool:
    """Whether a label fulfils an expression: `a`, `!a`, `in(a,b)` or `!in(a,b)`.

    Args:
      label: The host's value; None for a host without that label, which fulfils what is negated.
    """
    listed = _IN.fullmatch(wanted)
    if listed is not None:
        is_in = label in [value.strip() for value in listed["values"].split(",")]
        return is_in is not bool(listed["negation"])
    return label != wanted[1:] if wanted.startswith("!") else label == wanted
