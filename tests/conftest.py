"""Fixtures for the whole suite: one Ray and one S3 a session, a clean environment, nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import worker_machine
from tests.support.faulty_http import FaultyProxy, faulty_proxy
from tests.support.groups import GroupScheduling, num_workers, rank_of
from tests.support.leaks import Snapshot
from tests.support.levels import faults_of_marks, is_slow, mark_case, names_only_tests
from tests.support.object_store import new_bucket, s3_environ, s3_server

# What is wrong with marks, and what is said of the tests that need an option.
FAULTS_OF_MARKS = pytest.StashKey[list[str]]()
LEFT_OUT = pytest.StashKey[str]()
# Whether collecting them has imported TensorFlow: each worker of pytest-xdist would.
HAS_TENSORFLOW = pytest.StashKey[bool]()

DEFAULT_MARKS = "not slow and not exhaustive"  # as in pyproject.toml

LEAKING_VARIABLES = (
    *("RAY_ADDRESS", "TF_CONFIG", "TF_USE_LEGACY_KERAS", "TF_GRPC_REUSE_PORT", "KERAS_BACKEND"),
    *("TPU_NAME", "COLAB_TPU_ADDR"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--compat", action="append", default=[], help="also run a set of tests/compat/sets.toml, or all"
    )
    parser.addoption("--compat-dir", help="where the environments of --compat are kept; else they are new")
    parser.addoption(
        "--libraries", metavar="DIR", help="also run tests/libraries, with its packages installed in DIR"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Takes SIGINT whatever shell this was started by: what tests start would inherit that it is ignored.

    And lets bytecode be written, which some machines forbid: tests start hundreds of processes, and each
    would compile raydist for itself. Ray gives its workers a niceness of 15, and tests that run beside them
    would leave them next to nothing of a small machine. It also starts one for each CPU ahead of the first
    job, which is 30% of what a Ray costs, and more than are needed. A test that is named is run, slow or not.
    """
    os.environ |= {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}
    chooses = any(one.startswith("-m") for one in config.invocation_params.args)
    if names_only_tests(config.args) and not chooses:
        config.option.markexpr = ""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """More than there are cores, because many tests wait; none for a test or two that somebody works on."""
    are_files = (Path(argument.partition("::")[0]).suffix == ".py" for argument in config.args)
    return 0 if all(are_files) else num_workers()


def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Gives each worker a machine of its own where that is allowed."""
    if worker_machine.why_unavailable() is None:
        shared: Path = config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        for spec in specs:
            spec.python = worker_machine.python_of_machine(
                shared / f"machine-{spec.id}", shared=[shared, config.rootpath]
            )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return GroupScheduling(config, log, is_default=config.option.markexpr == DEFAULT_MARKS)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import files all of whose tests the default run leaves out, unless they are named."""
    is_default = config.option.markexpr == DEFAULT_MARKS and collection_path.name.startswith("test_")
    is_named = any(Path(one.partition("::")[0]).absolute() == collection_path for one in config.args)
    return True if is_default and not is_named and is_slow(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[FAULTS_OF_MARKS] = faults_of_marks(items)
    for item in items:
        mark_case(item)
    if hasattr(config, "workerinput"):  # of pytest-xdist
        items.sort(key=lambda item: rank_of(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looks for no garbage among 9,000 tests, meanwhile and later: a fifth of what collecting them costs."""
    gc.disable()
    collected = yield
    gc.enable()
    gc.freeze()
    return collected


def leave_out(config: pytest.Config, items: list[pytest.Item], left: list[pytest.Item], option: str) -> None:
    """Deselects tests that an option adds, and says so at the end."""
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]
        said = f"{len(left)} tests of tests/{left[0].path.parent.name} deselected: {option} adds them"
        config.stash[LEFT_OUT] = "\n".join(filter(None, (config.stash.get(LEFT_OUT, ""), said)))


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[HAS_TENSORFLOW] = "tensorflow" in sys.modules
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left out"] = session.config.stash.get(LEFT_OUT, "")


def pytest_testnodedown(node: Any) -> None:
    """Keeps what a worker of pytest-xdist has left out: each one has collected all tests."""
    if (said := getattr(node, "workeroutput", {}).get("left out")) is not None:
        node.config.stash[LEFT_OUT] = said


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if said := config.stash.get(LEFT_OUT, ""):
        terminalreporter.write_line(said)


@pytest.fixture(autouse=True)
def clean_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster, TF_CONFIG or Keras choice of the developer's shell, or of an earlier test, leaks in."""
    for name in LEAKING_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What raydist notes of this user's runs is noted beside the tests, and not in the developer's home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


WaitUntil = Callable[..., None]


@pytest.fixture
def wait_until() -> WaitUntil:
    """Waits for a condition; fails once `timeout_s` has passed without it."""

    def wait(predicate: Callable[[], object], *, timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            asked_at_s = time.monotonic()
            if predicate():
                return
            assert time.monotonic() < deadline, f"not within {timeout_s} s"
            # Poll slow predicates less often: they would keep a core busy.
            time.sleep(min(1.0, max(0.02, 4 * (time.monotonic() - asked_at_s))))

    return wait


@pytest.fixture(scope="session")
def shared_ray() -> Iterator[Any]:
    """The session's Ray, which has not been started yet."""
    from tests.support.shared_ray import SharedRay

    shared = SharedRay()
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def ray_cluster(shared_ray: Any) -> object:
    """The connection to the session's Ray."""
    connection: object = shared_ray.opened()
    return connection


@pytest.fixture
def no_leaks(ray_cluster: object) -> Iterator[None]:
    """After the test no thread, child process, actor, placement group or scratch folder is left."""
    before = Snapshot.take()
    yield
    deadline = time.monotonic() + 15
    while (left := Snapshot.take().beyond(before)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == {}


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
