"""Records of runs: read where they are, as a command for each look would keep a core busy, and made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raydist.storage.run_record import RunRecord, decode_record
from raydist.storage.run_storage import RunStorage


def record_of(storage: Path, run: str) -> dict[str, Any]:
    """Returns what `run.json` has; an empty run before there is one."""
    try:
        return json.loads((storage / run / "run.json").read_text())
    except FileNotFoundError:
        return {"state": None, "steps": 0, "tasks": []}


def make_record(storage: RunStorage, **facts: Any) -> RunRecord:
    """Returns a record with these facts, given as run.json has them; the others are as in an empty one."""
    return decode_record(json.dumps({"state": "STARTING", **facts}).encode(), storage)
