"""The marks `slow` and `exhaustive`, and the marks of what a test needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import FAULTS_OF_MARKS

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
TESTS = """
import pytest
from tests.support.object_store import s3_server

@pytest.mark.slow("2 workers")
@pytest.mark.exhaustive("legacy", covered_by="[3]")
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("cluster", ["1 worker", "2 workers"])
def test_trains(cluster, keras): ...

@pytest.mark.slow
def test_waits(): ...
"""


@pytest.fixture
def collected(pytester: pytest.Pytester) -> Callable[..., list[str]]:
    """Returns the names of the cases that pytest takes of TESTS, with the suite's own hooks."""
    pytester.makeconftest("from tests.conftest import *")
    pytester.makepyfile(test_marked=TESTS)
    options = ["-n", "0", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={pytester.path}"]

    def collect(*arguments: str, test: str = "") -> list[str]:
        calls = pytester.inline_run("--collect-only", *options, *arguments, f"test_marked.py{test}")
        return [item.name for item in calls.getcall("pytest_collection_finish").session.items]

    return collect


def test_marks_name_cases_that_there_are_and_what_covers_them(request: pytest.FixtureRequest) -> None:
    if any("::" in argument for argument in request.config.args):
        pytest.skip("only some cases of a test are collected")
    assert request.config.stash[FAULTS_OF_MARKS] == []


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (("-m", "slow and not exhaustive"), ["test_trains[2 workers-3]", "test_waits"]),
        (("-m", "exhaustive"), ["test_trains[1 worker-legacy]", "test_trains[2 workers-legacy]"]),
        (("-m", "s3 and not slow and not exhaustive"), ["test_trains[1 worker-3]"]),
    ],
    ids=["slow", "exhaustive", "needs"],
)
def test_cases_are_chosen_by_their_marks(
    chosen: tuple[str, ...], expected: list[str], collected: Callable[..., list[str]]
) -> None:
    assert collected(*chosen) == expected


def test_test_that_is_named_is_run_whatever_its_marks(collected: Callable[..., list[str]]) -> None:
    assert collected(test="::test_waits") == ["test_waits"]
