"""What the tests of input data share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faulty_http import FaultyProxy, faulty_proxy
from tests.support.object_store import new_bucket, s3_environ, s3_server


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_uri(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in a fresh bucket."""
    for name, value in s3_environ(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{new_bucket(s3_endpoint)}/input data"


@pytest.fixture(autouse=True)
def index_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where TFRecord's indexes are kept, instead of the developer's home."""
    folder = tmp_path_factory.mktemp("index")
    monkeypatch.setenv("RAYDIST_CACHE", str(folder))
    return folder


@pytest.fixture
def proxy(s3_endpoint: str, s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Stands before the S3 server of `s3_uri`; passes everything on until a test says otherwise."""
    with faulty_proxy(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
