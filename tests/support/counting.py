"""Counts what a call does, where its time would tell as much of the machine as of the code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def num_calls(call: Callable[[], object]) -> int:
    """Returns how many functions, of Python and of C, `call` calls."""
    number = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(before)
    return number
