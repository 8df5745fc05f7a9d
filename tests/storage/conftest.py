"""Storage to test against: plain folders, and a real S3 server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raydist.spec.tasks import TaskId, TaskType
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout
from tests.support.faulty_http import FaultyProxy, faulty_proxy
from tests.support.object_store import new_bucket, s3_environ, s3_server


class FakeClock:
    """A clock that stands still unless told."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_uri(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in a fresh bucket, reached as users reach it: through AWS's environment variables."""
    for name, value in s3_environ(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{new_bucket(s3_endpoint)}/raydist runs"


@pytest.fixture
def proxy(s3_endpoint: str, s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Stands before the S3 server of `s3_uri`; passes everything on until a test says otherwise."""
    with faulty_proxy(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


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
def storage(storage_uri: str) -> Storage:
    return Storage.open(storage_uri)


@pytest.fixture
def local_storage(tmp_path: Path) -> Storage:
    return Storage.open(str(tmp_path / "runs"))


@pytest.fixture
def layout() -> RunLayout:
    return RunLayout(run="first")


@pytest.fixture
def task() -> TaskId:
    return TaskId(task_type=TaskType.WORKER, index=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()
