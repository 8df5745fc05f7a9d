"""The marks `slow` and `exhaustive`, the marks of what a test needs, and parts of the tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FAULTS_OF_MARKS
from tests.support.levels import read_shard, shard_of

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
from tests.support.processes import run_function

@pytest.mark.slow("2 workers")
@pytest.mark.exhaustive("legacy", covered_by="[3]")
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("cluster", ["1 worker", "2 workers"])
def test_trains(cluster, keras): ...

@pytest.mark.slow
def test_waits(): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tests with the suite's own hooks."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_marked.py").write_text(TESTS)
    return folder


def collected(*arguments: str, folder: Path, test: str = "") -> tuple[list[str], str]:
    """Returns the names of the cases that pytest takes, and what it says of them at the end."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only", "-q", f"--rootdir={folder}"]
    options = ["-c", str(ROOT / "pyproject.toml"), "-o", "testpaths="]
    file = f"{folder / 'test_marked.py'}{test}"
    done = subprocess.run(
        [*command, *options, *arguments, file], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode in (0, 5), done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return [line.rpartition("::")[2] for line in lines if "::" in line], lines[-1]


def test_marks_name_cases_that_there_are_and_what_covers_them(request: pytest.FixtureRequest) -> None:
    if any("::" in argument for argument in request.config.args):
        pytest.skip("only some cases of a test are collected")
    assert request.config.stash[FAULTS_OF_MARKS] == []


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (("-m", "slow and not exhaustive"), ["test_trains[2 workers-3]", "test_waits"]),
        (("-m", "exhaustive"), ["test_trains[1 worker-legacy]", "test_trains[2 workers-legacy]"]),
        (("-m", "processes and not slow and not exhaustive"), ["test_trains[1 worker-3]"]),
    ],
    ids=["slow", "exhaustive", "needs"],
)
def test_cases_are_chosen_by_their_marks(chosen: tuple[str, ...], expected: list[str], folder: Path) -> None:
    names, said = collected(*chosen, folder=folder)
    assert names == expected
    assert said.startswith(f"{len(expected)}/5 tests collected ({5 - len(expected)} deselected) in ")


def test_test_that_is_named_is_run_whatever_its_marks(folder: Path) -> None:
    assert collected(folder=folder, test="::test_waits")[0] == ["test_waits"]


def test_shards_share_out_whole_files() -> None:
    tests = [f"tests/{path}.py::test[{i}]" for path in "abcdefgh" for i in range(3)]
    shards = [shard_of(test, 4) for test in tests]
    assert set(shards) <= {1, 2, 3, 4}
    assert len(set(shards)) > 1
    assert shards[::3] == shards[1::3] == shards[2::3]


@pytest.mark.parametrize("text", ["3", "0/4", "5/4", "a/b", "1/0", "-1/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write K/N"):
        read_shard(text)


def test_shard_is_read() -> None:
    assert read_shard("2/10") == (2, 10)
