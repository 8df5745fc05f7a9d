from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from raydist.metrics.reading import read_columns
from raydist.outcome.status import MetricRow, Scope
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.metric_rows import store_rows

Columns = Callable[..., Any]


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return open_run(str(tmp_path / "runs"), run="first")


@pytest.fixture
def columns(storage: RunStorage) -> Columns:
    """Stores rows, and reads those of one scope."""

    def store_and_read(rows: Iterable[MetricRow], *, scope: Scope = Scope.GLOBAL) -> Any:
        storage.delete(storage.metrics)
        store_rows(storage, rows)
        return read_columns(storage, scope=scope)

    return store_and_read
