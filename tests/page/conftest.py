from __future__ import annotations

from pathlib import Path

import pytest

from raydist.storage.run_storage import RunStorage, open_run
from tests.support.page_runs import store_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A storage with the run `digits-1`, whose worker/1 died in attempt 0."""
    folder = tmp_path / "runs"
    store_run(open_run(str(folder), run="digits-1"))
    return folder


@pytest.fixture
def run(runs: Path) -> RunStorage:
    return open_run(str(runs), run="digits-1")
