from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from raydist.metrics.reading import read_columns
from raydist.metrics.records import MetricRow, Scope
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout
from tests.support.metric_rows import store_rows

Columns = Callable[..., Any]


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "runs"))


@pytest.fixture
def columns(storage: Storage) -> Columns:
    """Stores rows, and reads those of one scope."""

    def store_and_read(rows: Iterable[MetricRow], *, scope: Scope = Scope.GLOBAL) -> Any:
        layout = RunLayout(run="first")
        storage.delete(layout.metrics)
        store_rows(storage, layout, rows)
        return read_columns(storage, layout, scope=scope)

    return store_and_read
