from __future__ import annotations

from pathlib import Path

import pytest

from raydist.metrics.parquet import MetricsWriter
from raydist.outcome.status import Scope
from raydist.spec.tasks import TaskId
from raydist.storage.run_storage import RunStorage, open_run
from raydist.tracking.mlflow_client import NewValues, Value
from tests.support.metric_rows import row, store_rows


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return open_run(str(tmp_path / "runs"), run="first")


def told(values: list[Value]) -> list[tuple[str, int, float]]:
    return [(one.name, one.step, one.value) for one in values]


def test_global_values_are_read_in_the_order_of_their_time(storage: RunStorage) -> None:
    store_rows(
        storage,
        [
            row(step=2, value=0.2, wall_time=12.0),
            row(step=1, value=0.9, wall_time=11.0, task="evaluator/0"),
            row(step=1, value=0.5, wall_time=10.0, attempt=1),
            row(step=1, value=7.0, wall_time=10.5, scope=Scope.LOCAL),
        ],
    )
    found = NewValues(storage, taken={}).read()
    assert told(found) == [("loss", 1, 0.5), ("evaluator/loss", 1, 0.9), ("loss", 2, 0.2)]
    assert [one.source for one in found] == ["1 worker/0", "0 evaluator/0", "0 worker/0"]


def test_what_is_not_taken_is_read_again(storage: RunStorage) -> None:
    store_rows(storage, [row(step=step, value=step / 10, wall_time=step) for step in (1, 2, 3)])
    values = NewValues(storage, taken={})
    values.read()
    values.take(2)
    assert told(values.read()) == [("loss", 3, 0.3)]
    values.take(1)
    assert values.read() == []


def test_next_reader_goes_on_where_the_one_before_ended(storage: RunStorage) -> None:
    store_rows(storage, [row(step=1, value=0.1, wall_time=1.0)])
    before = NewValues(storage, taken={})
    before.take(len(before.read()))
    store_rows(storage, [row(step=2, value=0.2, wall_time=2.0, attempt=1)])
    assert told(NewValues(storage, taken=before.taken).read()) == [("loss", 2, 0.2)]


def test_rows_of_a_file_that_grows_are_told_once(storage: RunStorage) -> None:
    writer = MetricsWriter.open(storage, task=TaskId.parse("worker/0"), attempt=0)
    values, seen = NewValues(storage, taken={}), []
    for step in range(1, 20):
        writer.append([row(step=step, value=0.0, wall_time=float(step))])
        writer.flush()
        if step % 7 == 0:
            found = values.read()
            values.take(len(found))
            seen += found
    assert len(storage.list_names(storage.metrics)) == 1
    seen += values.read()
    assert [one.step for one in seen] == list(range(1, 20))


def test_damaged_file_is_named_and_passed_over(storage: RunStorage) -> None:
    store_rows(storage, [row(step=1, value=0.1, wall_time=1.0)])
    storage.write_bytes(f"{storage.metrics}/0-worker-0-000007.parquet", b"no parquet")
    values = NewValues(storage, taken={})
    assert told(values.read()) == [("loss", 1, 0.1)]
    (sentence,) = values.damages
    assert "000007.parquet is damaged" in sentence
    values.read()
    assert len(values.damages) == 1
