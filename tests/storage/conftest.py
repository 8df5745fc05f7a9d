"""Storage to test against: plain folders, and the real S3 server of `s3_uri`."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydist.spec.tasks import TaskId, TaskType
from raydist.storage.run_storage import RunStorage, open_run


class FakeClock:
    """A clock that stands still unless told."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(params=["folder", "space_and_quote", "file_uri", "s3"])
def storage_uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "folder":
            return str(tmp_path / "runs")
        case "space_and_quote":
            return str(tmp_path / "my 'runs' \"here\"")
        case "file_uri":
            return f"file://{tmp_path}/a%20b"
        case _:
            uri: str = request.getfixturevalue("s3_uri")
            return uri


@pytest.fixture
def storage(storage_uri: str) -> RunStorage:
    return open_run(storage_uri, run="first")


@pytest.fixture
def local_storage(tmp_path: Path) -> RunStorage:
    return open_run(str(tmp_path / "runs"), run="first")


@pytest.fixture
def task() -> TaskId:
    return TaskId(task_type=TaskType.WORKER, index=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
