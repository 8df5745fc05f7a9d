"""Processes that hold a scratch folder, which each of these tests has a place of its own for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_HOLD = """
import sys, time
from raydist.runtime.host.scratch import Scratch, spool_path
scratch = Scratch.create(sys.argv[1])
spool_path(scratch.path).write_text("printed before the end\\n")
print(scratch.path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def start_owner(name: str) -> tuple[subprocess.Popen[str], Path]:
    """Returns a process that holds a scratch folder, and the folder."""
    owner = subprocess.Popen([sys.executable, "-c", _HOLD, name], stdout=subprocess.PIPE, text=True)
    with owner.stdout:
        return owner, Path(owner.stdout.readline().strip())
