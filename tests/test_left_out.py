"""What is left out of the default run exists, so that a test that is renamed is not run by mistake."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.left_out import LEFT_OUT, is_left_out

TESTS = Path(__file__).parent


@pytest.mark.parametrize("path", LEFT_OUT)
def test_each_beginning_is_that_of_a_test(path: str) -> None:
    tree = ast.parse((TESTS / path).read_text())
    names = _tests(tree)
    for beginning in LEFT_OUT[path]:
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


def test_both_kinds_of_what_is_left_out_are_known() -> None:
    assert is_left_out("e2e/test_claims.py", "test_anything")
    assert is_left_out("training/test_train_data.py", "test_epoch_has_as_many[legacy]")
    assert not is_left_out("training/test_train_data.py", "test_epoch_has_as_many[3]")
    assert not is_left_out("training/test_recipes.py", "test_other[legacy]")
