"""What a run's record says, read where it is: a command for each look would keep a core busy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def record_of(storage: Path, run: str) -> dict[str, Any]:
    """Returns what `run.json` has; an empty run before there is one."""
    try:
        return json.loads((storage / run / "run.json").read_text())
    except FileNotFoundError:
        return {"state": None, "steps": 0, "tasks": []}
