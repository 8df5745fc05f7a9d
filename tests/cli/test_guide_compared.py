"""The page that compares raydist with other runners: each row names a test that there is."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

import pytest

from tests.support.guide import ROOT
from tests.support.guide_reference import COLUMNS, OTHERS, Feature, features

ROWS = [row for rows in features().values() for row in rows]
STATES = {"works", "on CPUs only", "partly", "not"}

each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row.ids))


@functools.cache
def names_in(path: str) -> set[str]:
    """Returns the tests of a file, those in classes as `Class::test`. Imports nothing."""

    def found(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield prefix + node.name
            elif isinstance(node, ast.ClassDef):
                yield from found(node.body, f"{node.name}::")

    return set(found(ast.parse((ROOT / path).read_text()).body))


@each_row
def test_test_of_a_row_exists(row: Feature) -> None:
    path, _, name = row.test.partition("::")
    assert name in names_in(path)


@each_row
def test_row_says_what_is_missing_in_few_words(row: Feature) -> None:
    assert row.raydist in STATES
    assert row.remark or row.raydist not in ("partly", "not")
    assert len(row.remark.split()) <= 10
    assert 1 <= len(row.feature.split()) <= 8
    assert {*row.peers.split()} <= {*COLUMNS, *OTHERS}


def test_every_feature_is_in_one_row() -> None:
    expected = [f"A{number}" for number in range(1, 67)] + [f"B{number}" for number in range(1, 23)]
    assert sorted(name for row in ROWS for name in row.ids) == sorted(expected)
