"""Storage to test against: plain folders, and a real S3 server over HTTP."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from raydist.spec.tasks import TaskId, TaskType
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout

# In a process of its own, so that neither its threads nor its warnings are ours; it ends when its
# stdin is closed, also when pytest is killed.
_S3_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


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
    with subprocess.Popen(
        [sys.executable, "-c", _S3_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"


@pytest.fixture
def s3_uri(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in a fresh bucket, reached as users reach it: through AWS's environment variables."""
    environ = {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{uuid.uuid4().hex}"
    urllib.request.urlopen(urllib.request.Request(f"{s3_endpoint}/{bucket}", method="PUT")).close()
    return f"s3://{bucket}/raydist runs"


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
