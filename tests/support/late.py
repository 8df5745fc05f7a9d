"""Modules that a test imports when it uses them.

TensorFlow takes seconds, and each worker of pytest-xdist collects the tests of all.
"""

from __future__ import annotations

import importlib
from typing import Any


class LateModule:
    """Has the names of a module, which is imported when the first one is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # pytest asks everything in a file of tests for its own marks
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)
