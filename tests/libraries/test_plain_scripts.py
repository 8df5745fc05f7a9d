"""Scripts of tests/scripts/plain that plot, or search with other people's libraries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.scripts import QUIET
from tests.training.test_plain_scripts import WITH_LIBRARIES, Check, compare

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("check", WITH_LIBRARIES, ids=str)
def test_workers_print_and_leave_what_plain_python_does(
    check: Check, libraries: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = filter(None, (os.environ.get("PYTHONPATH"), libraries))
    for name, value in {**QUIET, "PYTHONPATH": os.pathsep.join(places), "MPLBACKEND": "Agg"}.items():
        monkeypatch.setenv(name, value)
    for place in ("bare", "tasks"):
        (tmp_path / place).mkdir()
    compare(check, tmp_path / "bare", tmp_path / "tasks")
