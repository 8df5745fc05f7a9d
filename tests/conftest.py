"""Fixtures for the whole suite: one Ray and one S3 a session, a clean environment, nothing left behind."""

from __future__ import annotations

import secrets
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.faulty_http import FaultyProxy, faulty_proxy
from tests.support.leaks import Snapshot
from tests.support.object_store import new_bucket, s3_environ, s3_server

_LEAKING_VARIABLES = (
    *("RAY_ADDRESS", "TF_CONFIG", "TF_USE_LEGACY_KERAS", "TF_GRPC_REUSE_PORT", "KERAS_BACKEND"),
    *("TPU_NAME", "COLAB_TPU_ADDR"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    """Takes SIGINT whatever shell this was started by: what tests start would inherit that it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--runslow"):
        return
    for item in items:
        if item.get_closest_marker("slow") is not None:  # its keywords have the names of folders too
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with --runslow"))


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster, TF_CONFIG or Keras choice of the developer's shell, or of an earlier test, leaks in."""
    for name in _LEAKING_VARIABLES:
        monkeypatch.delenv(name, raising=False)


WaitUntil = Callable[..., None]


@pytest.fixture
def wait_until() -> WaitUntil:
    """Waits for a condition; fails once `timeout_s` has passed without it."""

    def wait(predicate: Callable[[], object], *, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not predicate():
            assert time.monotonic() < deadline, f"not within {timeout_s} s"
            time.sleep(0.02)

    return wait


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[object]:
    """An embedded Ray with 4 logical CPUs, started once: its start is the cost."""
    from raydist.runtime.cluster.connection import connect

    with pytest.MonkeyPatch.context() as patch:
        # Otherwise Ray would write a token into the developer's home, and later Rays would demand it.
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        with connect("local", embedded_cpus=4) as connection:
            yield connection


@pytest.fixture
def no_leaks(ray_cluster: object, wait_until: WaitUntil) -> Iterator[None]:
    """After the test no thread, child process, actor, placement group or scratch folder is left."""
    before = Snapshot.take()
    yield
    wait_until(lambda: Snapshot.take().beyond(before) == {}, timeout_s=15)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def s3_uri(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder in a fresh bucket, reached as users reach it: through AWS's environment variables."""
    for name, value in s3_environ(s3_endpoint).items():
        monkeypatch.setenv(name, value)
    return f"s3://{new_bucket(s3_endpoint)}/some folder"


@pytest.fixture
def proxy(s3_endpoint: str, s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Stands before the S3 server of `s3_uri`; passes everything on until a test says otherwise."""
    with faulty_proxy(s3_endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
