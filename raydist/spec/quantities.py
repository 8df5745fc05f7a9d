"""Sizes and durations as users write them: `512KiB` and `1GiB`, `90s` and `2h`, or a plain number."""

from __future__ import annotations

import math
import re

from raydist.errors import SpecError

ByteSize = int | str
"""What is taken wherever a size is asked for."""

_SIZE_REMEDY = "write bytes, or 512KiB, 32MiB, 1GiB"

_BYTES_PER_UNIT = {
    "": 1,
    **{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30},
    **{"KB": 10**3, "MB": 10**6, "GB": 10**9},
}


def write_bytes(num_bytes: int) -> str:
    """Returns `8 GiB`, `1.5 GiB` or `300 MiB`."""
    unit = "GiB" if num_bytes >= 1 << 30 else "MiB"
    return f"{num_bytes / _BYTES_PER_UNIT[unit]:.4g} {unit}"


def size_text(num_bytes: int) -> str:
    """Returns `512 B`, `4.2 kB`, `1.5 GB`."""
    if num_bytes < 1000:
        return f"{num_bytes} B"
    size = float(num_bytes)
    for unit in ("kB", "MB", "GB", "TB"):
        size /= 1000
        if size < 1000 or unit == "TB":
            break
    return f"{size:.1f} {unit}"


def parse_bytes(name: str, value: object) -> int:
    """Returns `value` in bytes.

    Args:
      name: What the size is for, for the message.

    Raises:
      SpecError: It is not a size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(-?[0-9]{1,15})\s*([KMG]i?B)?\s*", value)):
        return int(match[1]) * _BYTES_PER_UNIT[match[2] or ""]
    raise SpecError(f"{name} is {value!r}; {_SIZE_REMEDY}")


Duration = float | str
"""What is taken wherever a time is asked for."""

_DURATION_REMEDY = "write seconds, or 90s, 5m, 2h"
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
    raise SpecError(f"{name} is {value!r}; {_DURATION_REMEDY}")


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
            return f"{write_number(seconds / _SECONDS_PER_UNIT[unit])}{unit}"
    return f"{write_number(seconds)}s"


def write_number(number: float) -> str:
    """Returns the shortest text that is read as `number`."""
    text = f"{number:.15g}"  # without `.0`
    return text if float(text) == number else repr(number)
