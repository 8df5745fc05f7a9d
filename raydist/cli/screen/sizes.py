"""Sizes in bytes as people read them."""

from __future__ import annotations


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
