"""How a process has ended, in words."""

from __future__ import annotations

import contextlib
import signal


def describe_exit(code: int) -> str:
    """Returns `was killed by SIGSEGV` or `ended with exit code 7`."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        name = signal.Signals(-code).name
    return f"was killed by {name}"
