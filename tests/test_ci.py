"""The functions of `.ci/run`, each with programs that a test makes up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")


def function(name: str) -> str:
    found = re.search(rf"^{name}\(\) {{.*?^}}$", RUN.read_text(), re.MULTILINE | re.DOTALL)
    return found[0]


def bash(*functions: str, script: str, folder: Path, **programs: str) -> list[str]:
    """Runs a script with functions of `.ci/run` and programs, given as shell scripts; returns its lines."""
    for name, body in programs.items():
        program = folder / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    text = "\n".join(
        [
            "set -uo pipefail; failed=(); repeated=(); broken=(); runner=(pytest); rows=(); folder=.",
            *map(function, functions),
            script,
        ]
    )
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env={"PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(RUN.parents[1])},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("user", "installs", "said"), [("1000", "exit 0", "no"), ("0", "exit 1", "no"), ("0", "exit 0", "yes")]
)
def test_package_that_cannot_be_installed_is_said(
    tmp_path: Path, user: str, installs: str, said: str
) -> None:
    programs = {"id": f"echo {user}", "apt-get": installs}
    assert bash("debian", script="debian x && echo yes || echo no", folder=tmp_path, **programs) == [said]


# Like pytest: one test fails twice, another one once; the cache has what has failed.
PYTEST = """
mkdir -p .pytest_cache/v/cache
case "$*" in
*--last-failed*) echo '{"tests/a.py::test_broken[x y]": true}' ;;
*) echo '{"tests/a.py::test_broken[x y]": true, "tests/a.py::test_late[1 s]": true}' ;;
esac >.pytest_cache/v/cache/lastfailed
exit 1
"""


def test_summary_has_what_passes_only_when_it_is_repeated_and_what_fails_again(tmp_path: Path) -> None:
    script = 'tests --only x >log; echo "$?"; printf "%s\\n" "${repeated[@]}" "${broken[@]}"'
    said = bash("tests", "last_failed", script=script, folder=tmp_path, pytest=PYTEST)
    assert said == ["1", "tests/a.py::test_late[1 s]", "tests/a.py::test_broken[x y]"]


def test_tests_that_pass_are_run_once(tmp_path: Path) -> None:
    script = 'tests a b; echo "$? ${#repeated[@]}"'
    said = bash("tests", "last_failed", script=script, folder=tmp_path, pytest="echo $*")
    assert said == ["-rs a b", "0 0"]


def test_eight_parts_of_the_slow_tests_are_all_files_and_each_has_the_tables(tmp_path: Path) -> None:
    files = [f"tests/{folder}/test_{index}.py" for folder in ("a", "b/c") for index in range(9)]
    for file in ("tests/tables/test_sizes.py", *files):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    script = "slow_tests; slow_tests 8; slow_tests {1..8}"
    given = bash("tests", "last_failed", "slow_tests", script=script, folder=tmp_path, pytest="echo $*")
    assert all(one.startswith("-rs -m slow and not exhaustive tests/tables ") for one in given)
    none, one, whole = ([word for word in line.split() if word in files] for line in given)
    assert (none, one, sorted(whole)) == ([], [files[7], files[15]], files)


def test_part_has_a_row_with_its_cases(tmp_path: Path) -> None:
    summary = "echo '3 passed, 1 skipped in 0.52s'; echo 'SKIPPED [1] a.py:1: no ip'"
    script = 'check tests a >log; echo "${rows[0]}"; cat skipped'
    [row, skipped] = bash("check", "tests", "last_failed", script=script, folder=tmp_path, pytest=summary)
    assert row.split()[1:] == ["s", "3", "passed,", "1", "skipped", "tests", "a"]
    assert skipped == "SKIPPED [1] a.py:1: no ip"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shellcheck", ["SKIPPED [1] a.py:1: shellcheck is not installed: apt-get install shellcheck"]),
        ("nft", ["SKIPPED [2] a.py:2: nftables is not installed"]),
        ("other", []),
    ],
)
def test_test_that_skips_for_want_of_what_is_there_is_told(
    tmp_path: Path, name: str, said: list[str]
) -> None:
    lines = (
        "SKIPPED [1] a.py:1: shellcheck is not installed: apt-get install shellcheck",
        "SKIPPED [2] a.py:2: nftables is not installed",
        "SKIPPED [3] a.py:3: tf_keras has no such loss",
    )
    (tmp_path / "skipped").write_text("".join(f"{line}\n" for line in lines))
    script = 'places="$PWD/bin"; wrong_skips'
    assert bash("wrong_skips", script=script, folder=tmp_path, **{name: "exit 0"}) == said


@pytest.mark.parametrize(
    ("uv", "python", "said"),
    [
        ("exit 1", "exit 1", "the installation of Python 3.10"),
        ("touch there", "test -e there", ""),
        ("echo is not asked", "exit 0", ""),
    ],
)
def test_python_that_cannot_be_had_fails_the_run(tmp_path: Path, uv: str, python: str, said: str) -> None:
    script = 'need_python 3.10; echo "${failed[*]:-}"'
    programs = {"uv": uv, "python": python, "id": "echo 1000"}
    assert bash("debian", "has_python", "need_python", script=script, folder=tmp_path, **programs) == [said]


@pytest.mark.parametrize(
    ("version", "said"), [(f"{sys.version_info.major}.{sys.version_info.minor}", "yes"), ("3.99", "no")]
)
def test_python_is_asked_for_by_its_version(tmp_path: Path, version: str, said: str) -> None:
    script = f"has_python {version} && echo yes || echo no"
    assert bash("has_python", script=script, folder=tmp_path) == [said]
