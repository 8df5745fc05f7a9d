"""Sizes as users write and read them: bytes as a number, or text such as `512KiB`, `32MiB` and `1GiB`."""

from __future__ import annotations

import re

from raydist.errors import SpecError

ByteSize = int | str
"""What is taken wherever a size is asked for."""

REMEDY = "write bytes, or 512KiB, 32MiB, 1GiB"

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
    raise SpecError(f"{name} is {value!r}; {REMEDY}")
