"""From what was written, text or a typed value, to one option's value."""

from __future__ import annotations

import enum
import math
import os
import re
from collections.abc import Callable
from typing import Any

from raydist.errors import SpecError
from raydist.spec.near import suggest

Parser = Callable[[str, object], Any]
"""Takes an option's name and what was written; returns the typed value or raises SpecError."""

_ADDRESS_PATTERN = re.compile(r"local|auto|ray://\S+|[^\s/]+:[0-9]{1,5}")


def text(name: str, value: object) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{name} is {value!r}; write some text")
    return value


def boolean(name: str, value: object) -> bool:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise SpecError(f"{name} is {value!r}; write true or false")
    return value


def whole_number(name: str, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,18}", value):
        return int(value)
    # True is an int to Python, but nobody means 1 worker by it.
    if not isinstance(value, int) or isinstance(value, bool):
        raise SpecError(f"{name} is {value!r}; write a whole number")
    return value


def number(name: str, value: object) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            parsed = float(value)
            if math.isfinite(parsed):
                return parsed
    except (ValueError, OverflowError):
        pass
    raise SpecError(f"{name} is {value!r}; write a number")


def optional(parser: Parser, *, none: str | None = None) -> Parser:
    """Also takes None, and the word `none` for it where the command line needs one."""

    def parse(name: str, value: object) -> Any:
        return None if value is None or (none is not None and value == none) else parser(name, value)

    return parse


def choice(kind: type[enum.Enum]) -> Parser:
    """Takes a member of `kind`, or its value as text (or as a number, where YAML made it one)."""

    def parse(name: str, value: object) -> enum.Enum:
        if isinstance(value, kind):
            return value
        by_text = {str(member.value): member for member in kind}
        written = str(value)
        if isinstance(value, bool) or written not in by_text:
            raise SpecError(f"{name} is {value!r}; {suggest(written, by_text)}")
        return by_text[written]

    return parse


def one_of(*words: str) -> Parser:
    def parse(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise SpecError(f"{name} is {value!r}; {suggest(str(value), words)}")
        return value

    return parse


def written_as(kind: type[Any], example: str, *, also: type[Any] = str) -> Parser:
    """Takes a `kind`, or what its `parse` reads: text, and `also` where YAML makes a number of it."""

    def parse(name: str, value: object) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, str | also) and not isinstance(value, bool):
            return kind.parse(str(value))
        raise SpecError(f"{name} is {value!r}; write {example}")

    return parse


def address(name: str, value: object) -> str:
    written = text(name, value)
    if not _ADDRESS_PATTERN.fullmatch(written):
        raise SpecError(f"{name} is {written!r}; write local, auto, host:port, or ray://host:port")
    return written
