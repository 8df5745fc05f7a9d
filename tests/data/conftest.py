"""What the tests of input data share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def index_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where TFRecord's indexes are kept, instead of the developer's home."""
    folder = tmp_path_factory.mktemp("index")
    monkeypatch.setenv("RAYDIST_CACHE", str(folder))
    return folder
