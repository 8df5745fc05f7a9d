"""The environment of processes that tests start on hosts and Rays of their own."""

from __future__ import annotations

import os

# Of all Ray's variables; see tests/conftest.py.
_NICENESS = "RAY_worker_niceness"


def inherited() -> dict[str, str]:
    """Returns this process's environment without what chooses a Ray or settings of TensorFlow."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == _NICENESS or not name.startswith(("RAY_", "TF_"))
    }
