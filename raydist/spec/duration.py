"""Durations as users write them: seconds as a number, or text such as `90s`, `5m` and `2h`."""

from __future__ import annotations

import math
import re

from raydist.errors import SpecError

Duration = float | str
"""What is taken wherever a time is asked for."""

REMEDY = "write seconds, or 90s, 5m, 2h"
_AGE_REMEDY = "write an age such as 90s, 5m, 2h, 30d"

_DAY_S = 86400.0
_SECONDS_PER_UNIT = {"s": 1, "m": 60, "h": 3600}


def parse_duration(name: str, value: object) -> float:
    """Returns `value` in seconds.

    Args:
      name: What the duration is for, for the message.

    Raises:
      SpecError: It is not a duration.
    """
    number, unit = value, "s"
    if isinstance(value, str) and (match := re.fullmatch(r"\s*([^\s]+?)\s*([smh])\s*", value)):
        number, unit = match[1], match[2]
    try:
        if isinstance(number, str | int | float) and not isinstance(number, bool):
            seconds = float(number) * _SECONDS_PER_UNIT[unit]
            if math.isfinite(seconds):
                return seconds
    except (ValueError, OverflowError):
        pass
    raise SpecError(f"{name} is {value!r}; {REMEDY}")


def parse_age(name: str, value: object) -> float:
    """Returns a duration that may be given in days too, such as `30d`, in seconds.

    It needs a unit: whoever writes 30 most likely means days, and what is that old is deleted.

    Raises:
      SpecError: It is not a duration.
    """
    days = re.fullmatch(r"\s*(\d{1,9}(?:\.\d+)?)\s*d\s*", value) if isinstance(value, str) else None
    if days is not None:
        return _DAY_S * float(days[1])
    try:
        seconds = parse_duration(name, value)
    except SpecError:
        raise SpecError(f"{name} is {value!r}; {_AGE_REMEDY}") from None
    if not isinstance(value, str) or not value.rstrip().endswith(tuple(_SECONDS_PER_UNIT)):
        raise SpecError(f"{name} is {value!r}, without a unit; {_AGE_REMEDY}")
    return seconds


def write_duration(seconds: float) -> str:
    """Returns the shortest text that `parse_duration` reads as `seconds`: `90s`, `5m`, `2h`."""
    for unit in ("h", "m"):
        if seconds and seconds % _SECONDS_PER_UNIT[unit] == 0:
            return f"{seconds / _SECONDS_PER_UNIT[unit]:.15g}{unit}"
    return f"{seconds:.15g}s"


def write_age(seconds: float) -> str:
    """Returns the shortest text that `parse_age` reads as `seconds`: `30d`, `12h`."""
    days = seconds / _DAY_S
    return f"{days:.15g}d" if days >= 1 and days == int(days) else write_duration(seconds)
