"""What is left out of the default run exists, so that what is renamed is not run by mistake."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.test_sets import TESTS as COMPAT_TESTS
from tests.conftest import CASES
from tests.support.exhaustive import EXHAUSTIVE
from tests.support.left_out import (
    KEEP_LEGACY,
    LEFT_OUT,
    Case,
    Choice,
    Level,
    is_left_out,
    level_of,
    read_shard,
    sentence_of,
    shard_of,
)

TESTS = Path(__file__).parent
LISTED = [
    (path, beginning)
    for lists in (LEFT_OUT, KEEP_LEGACY)
    for path, names in lists.items()
    for beginning in names
]
PATTERNS = [(path, pattern) for path, reasons in EXHAUSTIVE.items() for pattern in reasons]
CHOSEN = Case("e2e/test_survival.py", "test_killed_task_changes_nothing[upload-2-worker/0]", is_marked=True)
COVERED = Case("e2e/test_survival.py", "test_killed_task_changes_nothing[upload-3-worker/0]", is_marked=True)


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> list[Case]:
    """The cases of the files that this run of pytest has collected, those it leaves out included."""
    are_single = any("::" in argument for argument in request.config.args)
    return [] if are_single else request.config.stash[CASES]


@pytest.fixture(scope="module")
def names(collected: list[Case]) -> dict[str, list[str]]:
    """The names of the cases of each file in the lists."""
    found: dict[str, list[str]] = {path: [] for path, _ in (*LISTED, *PATTERNS)}
    for case in collected:
        found.get(case.path, []).append(case.name)
    missing = [path for path, known in found.items() if not known and (TESTS / path).exists()]
    for path, name in _collected_apart(missing):
        found[path].append(name)
    return found


def _collected_apart(paths: list[str]) -> list[tuple[str, str]]:
    """Returns the cases of files that this run of pytest has not collected."""
    if not paths:
        return []
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "--exhaustive"]
    files = [str(TESTS / path) for path in paths]
    done = subprocess.run([*command, *files], capture_output=True, text=True, cwd=TESTS.parent, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.removeprefix("tests/").partition("::") for line in done.stdout.splitlines() if "::" in line]
    return [(path, name) for path, _, name in lines]


def test_each_beginning_is_that_of_a_case(names: dict[str, list[str]]) -> None:
    assert missing_beginnings(LISTED, names) == []


def missing_beginnings(listed: list[tuple[str, str]], names: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [
        (path, beginning)
        for path, beginning in listed
        if not any(name.removeprefix("test_").startswith(beginning) for name in names[path])
    ]


def test_each_pattern_of_exhaustive_finds_a_case(names: dict[str, list[str]]) -> None:
    found = {
        (path, pattern) for path, pattern in PATTERNS if any(re.search(pattern, name) for name in names[path])
    }
    assert [one for one in PATTERNS if one not in found] == []


def test_only_functions_that_are_listed_by_name_run_nowhere_but_with_exhaustive(
    collected: list[Case],
) -> None:
    functions: dict[tuple[str, str], set[Level]] = {}
    for case in collected:
        functions.setdefault((case.path, case.name.partition("[")[0]), set()).add(level_of(case))
    named = [
        (path, name)
        for path, name in functions
        if any(
            pattern.startswith("^test_") and re.search(pattern, name) for pattern in EXHAUSTIVE.get(path, ())
        )
    ]
    assert [one for one, found in functions.items() if found == {Level.EXHAUSTIVE} and one not in named] == []


def test_sets_of_versions_run_each_case_of_the_tests_that_they_name(names: dict[str, list[str]]) -> None:
    for path, function in (test.split("::") for test in COMPAT_TESTS if "::" in test):
        path = path.removeprefix("tests/")
        cases = [Case(path, name) for name in names[path] if name.partition("[")[0] == function]
        assert {level_of(case) for case in cases} == {Level.DEFAULT}


def test_name_of_a_parameter_that_is_gone_is_found() -> None:
    names = {"a.py": ["test_one[new]", "TestA::test_two"]}
    listed = [("a.py", "one[old"), ("a.py", "one[new"), ("a.py", "TestA::test_t")]
    assert missing_beginnings(listed, names) == [("a.py", "one[old")]


@pytest.mark.parametrize(
    ("path", "name", "is_out"),
    [
        ("e2e/test_claims.py", "test_anything", True),
        ("training/test_train_data.py", "test_epoch_has_as_many[legacy]", True),
        ("training/test_train_data.py", "test_epoch_has_as_many[3]", False),
        ("training/test_recipes.py", "test_other[legacy]", False),
        # Nothing else looks whether a new tf_keras has other functions than those that were patched.
        ("training/test_keras_patches.py", "test_every_replaced_function_is_the_one[tf_keras]", False),
    ],
)
def test_default_run_has_no_tf_keras_in_training(path: str, name: str, is_out: bool) -> None:
    assert is_left_out(Case(path, name)) is is_out


@pytest.mark.parametrize(
    ("case", "level"),
    [
        (Case("a.py", "test_quick[1]"), Level.DEFAULT),
        (Case("a.py", "test_slow[1]", is_marked=True), Level.RUNSLOW),
        # What is added to a slow test runs with --runslow, unless it is listed as covered by another case.
        (Case("a.py", "test_slow[2]", is_marked=True), Level.RUNSLOW),
        (Case("e2e/test_claims.py", "test_left_out[new]"), Level.RUNSLOW),
        (CHOSEN, Level.RUNSLOW),
        (COVERED, Level.EXHAUSTIVE),
        (Case("e2e/test_every_command.py", "test_command[folder-logs]"), Level.RUNSLOW),
        (Case("e2e/test_every_command.py", "test_command[s3-logs]"), Level.EXHAUSTIVE),
        # A case of the default run is one of all levels, whatever its name.
        (Case("training/test_profiler.py", "test_quick[parameter_server-3]"), Level.DEFAULT),
    ],
)
def test_level_of_a_case(case: Case, level: Level) -> None:
    assert level_of(case) is level


def test_each_exhaustive_case_is_in_one_shard() -> None:
    cases = [Case("a.py", f"test_a[{i}]", is_marked=True) for i in range(50)]
    shards = [shard_of(case, 4) for case in cases]
    assert set(shards) == {1, 2, 3, 4}
    assert shards[:6] == [shard_of(case, 4) for case in cases[:6]]
    same_launch = Case("a.py", "test_b[7]")
    assert shard_of(same_launch, 4) == shards[7]


def test_shards_share_out_what_exhaustive_adds_and_nothing_else() -> None:
    shards = [Choice(highest=Level.EXHAUSTIVE, shard=(k, 3)) for k in (1, 2, 3)]
    assert sum(choice.takes(COVERED) for choice in shards) == 1
    assert all(choice.takes(CHOSEN) for choice in shards)
    assert not any(
        Choice(lowest=Level.EXHAUSTIVE, highest=Level.EXHAUSTIVE, shard=(k, 3)).takes(CHOSEN)
        for k in (1, 2, 3)
    )


def test_shards_of_runslow_share_out_what_it_adds_in_whole_files() -> None:
    cases = [Case(f"{path}.py", f"test[{i}]", is_marked=True) for path in "abcdefgh" for i in range(3)]
    shards = [Choice(lowest=Level.RUNSLOW, highest=Level.RUNSLOW, shard=(k, 4)) for k in (1, 2, 3, 4)]
    taken = [[case for case in cases if choice.takes(case)] for choice in shards]
    assert sorted(case.path for part in taken for case in part) == sorted(case.path for case in cases)
    assert all(not {one.path for one in taken[0]} & {one.path for one in part} for part in taken[1:])
    assert not any(choice.takes(Case("a.py", "test_quick")) or choice.takes(COVERED) for choice in shards)


@pytest.mark.parametrize("text", ["3", "0/4", "5/4", "a/b", "1/0", "-1/2"])
def test_what_is_no_shard_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write K/N"):
        read_shard(text)


def test_shard_is_read() -> None:
    assert read_shard("2/10") == (2, 10)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (Choice(), "2 tests of higher levels deselected: --runslow adds 1 of them, --exhaustive all"),
        (Choice(highest=Level.RUNSLOW), "1 test of higher levels deselected: --exhaustive all"),
        (Choice(highest=Level.EXHAUSTIVE), ""),
    ],
)
def test_what_is_left_out_is_said(choice: Choice, said: str) -> None:
    assert sentence_of([Case("a.py", "test_quick"), CHOSEN, COVERED], choice) == said


@pytest.mark.parametrize("workers", ["0", "2"])
def test_pytest_says_what_it_leaves_out(workers: str) -> None:
    command = [sys.executable, "-m", "pytest", "-n", workers, "tests/test_known_versions.py"]
    done = subprocess.run(
        [*command, "tests/test_signatures.py"], capture_output=True, text=True, cwd=TESTS.parent, timeout=120
    )
    assert done.returncode == 0, done.stdout
    assert re.search(
        r"^\d+ tests? of higher levels deselected: --runslow adds \d+", done.stdout, re.MULTILINE
    )
