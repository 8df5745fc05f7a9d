"""What is left out of the default run exists, so that a test that is renamed is not run by mistake."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.left_out import LEFT_OUT, OF_EXHAUSTIVE, OF_RUNSLOW, Case, Level, is_left_out, levels

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("path", "beginnings"),
    [*LEFT_OUT.items(), *(pytest.param(*item, id=f"exhaustive-{item[0]}") for item in OF_EXHAUSTIVE.items())],
)
def test_each_beginning_is_that_of_a_test(path: str, beginnings: Sequence[str]) -> None:
    names = _tests(ast.parse((TESTS / path).read_text()))
    for beginning in beginnings:
        assert any(name.startswith(beginning.partition("[")[0]) for name in names), beginning


def _tests(tree: ast.Module) -> list[str]:
    """Returns what `LEFT_OUT` calls the tests of a file."""
    names = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            names += [f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)]
        elif isinstance(node, ast.FunctionDef):
            names.append(node.name.removeprefix("test_"))
    return names


def test_files_of_runslow_exist() -> None:
    assert [path for path in OF_RUNSLOW if not (TESTS / path).is_file()] == []


@pytest.mark.parametrize("path", [path for path, pattern in OF_RUNSLOW.items() if pattern])
def test_pattern_of_runslow_finds_cases_and_leaves_some(request: pytest.FixtureRequest, path: str) -> None:
    if request.config.getoption("keyword"):
        pytest.skip("-k has chosen among the cases")
    names = [item.nodeid for item in request.session.items if item.nodeid.startswith(f"tests/{path}::")]
    if not names:
        pytest.skip(f"{path} is not collected beside this file")
    found = [name for name in names if re.search(OF_RUNSLOW[path], name)]
    assert 0 < len(found) < len(names), "the pattern finds no case, or every one"


def test_both_kinds_of_what_is_left_out_are_known() -> None:
    assert is_left_out("e2e/test_claims.py", "test_anything")
    assert is_left_out("training/test_train_data.py", "test_epoch_has_as_many[legacy]")
    assert not is_left_out("training/test_train_data.py", "test_epoch_has_as_many[3]")
    assert not is_left_out("training/test_recipes.py", "test_other[legacy]")


def test_runslow_has_a_case_of_each_function_and_exhaustive_all() -> None:
    cases = {
        Case("a.py", "test_quick[1]"): Level.DEFAULT,
        Case("a.py", "test_quick[2]", is_marked=True): Level.EXHAUSTIVE,
        Case("a.py", "test_slow[1]", is_marked=True): Level.RUNSLOW,
        Case("a.py", "test_slow[2]", is_marked=True): Level.EXHAUSTIVE,
        Case("a.py", "TestA::test_slow", is_marked=True): Level.RUNSLOW,
        Case("b.py", "test_slow[1]", is_marked=True): Level.RUNSLOW,
        Case("e2e/test_claims.py", "test_left_out[1]"): Level.RUNSLOW,
        Case("e2e/test_claims.py", "test_left_out[2]"): Level.EXHAUSTIVE,
        Case("e2e/test_slow_links.py", "test_left_out", is_marked=True): Level.EXHAUSTIVE,
        Case("e2e/test_every_command.py", "test_command[folder-stop]"): Level.RUNSLOW,
        Case("e2e/test_every_command.py", "test_command[folder-logs]"): Level.RUNSLOW,
        Case("e2e/test_every_command.py", "test_command[s3-logs]"): Level.EXHAUSTIVE,
    }
    assert dict(zip(cases, levels([*cases]), strict=True)) == cases
