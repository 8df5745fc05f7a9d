"""How an input is cut, and when a folder of predictions is taken for another one's."""

from __future__ import annotations

import dataclasses
import random

import pytest

from raydist.errors import MistakeError
from raydist.inference.parts import Manifest, cut, missing


@pytest.mark.parametrize(
    ("rows", "files", "units"),
    [
        pytest.param([], [], [], id="nothing"),
        pytest.param([5, 5, 5], [0, 0, 0], [(0, 2), (2, 3)], id="by-rows"),
        pytest.param([5, 5, 5], [0, 1, 1], [(0, 1), (1, 3)], id="by-files"),
        pytest.param([25, 1, 25], [0, 0, 0], [(0, 1), (1, 2), (2, 3)], id="large-units"),
    ],
)
def test_parts_end_with_their_file_or_before_they_are_too_large(
    rows: list[int], files: list[int], units: list[tuple[int, int]]
) -> None:
    assert [(part.first, part.end) for part in cut(rows, files, most_rows=10)] == units


def test_each_unit_is_in_one_part() -> None:
    draw = random.Random(3)
    rows = [draw.randint(1, 40) for _ in range(500)]
    files = sorted(draw.randint(0, 9) for _ in range(500))
    parts = cut(rows, files, most_rows=100)
    assert [unit for part in parts for unit in range(part.first, part.end)] == list(range(500))
    assert [part.num_rows for part in parts] == [sum(rows[part.first : part.end]) for part in parts]
    assert [part.number for part in parts] == list(range(len(parts)))


def test_only_parts_without_a_file_are_missing() -> None:
    parts = cut([10] * 4, [0, 1, 2, 3], most_rows=100)
    names = ["_raydist.json", parts[0].name, parts[2].name, "part-000009.parquet"]
    assert [part.number for part in missing(parts, names)] == [1, 3]


MANIFEST = Manifest(
    run="a",
    model="1f",
    data=7,
    format="parquet",
    to="parquet",
    features=("x",),
    copy=None,
    num_parts=2,
    num_rows=9,
)


def test_same_predictions_are_continued() -> None:
    dataclasses.replace(MANIFEST).check_same(MANIFEST.as_json(), uri="out/_raydist.json")


@pytest.mark.parametrize(
    "change", [{"run": "b"}, {"to": "csv"}, {"model": "2f"}, {"features": None}, {"num_rows": 8}], ids=str
)
def test_other_predictions_are_refused_by_what_differs(change: dict[str, object]) -> None:
    [name] = change
    with pytest.raises(MistakeError, match=f"that of other predictions: {name} was "):
        dataclasses.replace(MANIFEST, **change).check_same(MANIFEST.as_json(), uri="out")  # type: ignore[arg-type]


def test_predictions_for_data_that_have_changed_are_refused() -> None:
    with pytest.raises(MistakeError, match="since then a file of the data was written, added or deleted"):
        dataclasses.replace(MANIFEST, data=8).check_same(MANIFEST.as_json(), uri="out")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]"])
def test_damaged_manifest_is_one_sentence(text: str) -> None:
    with pytest.raises(MistakeError, match="out is damaged"):
        MANIFEST.check_same(text, uri="out")
