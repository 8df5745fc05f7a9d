"""The seed that Python's hashing had when this process began: a later change has no effect."""

from __future__ import annotations

import subprocess
import sys

_PRINT = "print(hash('raydist'))"


def _hash_with(seed: str) -> int:
    run = subprocess.run([sys.executable, "-c", _PRINT], env={"PYTHONHASHSEED": seed}, capture_output=True)
    return int(run.stdout)


VALUE = "7" if hash("raydist") == _hash_with("7") else "another"
