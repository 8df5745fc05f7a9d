"""Runs some Python in a process of its own: TensorFlow takes seconds to import, and stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_TIMEOUT_S = 120.0


class FreshProcessError(Exception):
    """The code was not done in time, or failed; the message is a reason without a subject."""


def answer_of(code: str, *, environ: Mapping[str, str | None]) -> Any:
    """Returns what the code printed last, a line of JSON.

    Args:
      environ: What the process has beside this process's environment; None for what it lacks.

    Raises:
      FreshProcessError: There is no answer.
    """
    wanted: dict[str, str | None] = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environ}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={name: text for name, text in wanted.items() if text is not None},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FreshProcessError(f"it took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise FreshProcessError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])
