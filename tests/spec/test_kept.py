"""Params in a run's record: strict JSON, from which every value comes back as it was."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from raydist.spec.params import PARAM_TYPES, keep_params, kept_params, parse_number, shown_params


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"a": 1, "b": 1.0, "c": "x", "d": None, "e": True, "f": [1, [2]], "g": {"h": {}}, "i": -0.0},
        {"a": math.inf, "b": -math.inf, "c": math.nan},
        {"a": ".inf", "b": "-.inf", "c": ".nan", "d": "inf", "e": "NaN", "f": "null"},
        {"a": [math.inf, ".inf", {"b": -math.inf, "c": ".nan"}], "b": {"a": [[math.nan]], "b.c": math.inf}},
        {"a": (), "b": (1, (math.inf, [2, (3,)])), "c": [(1, ".inf")]},
        {"a": 1e-320, "b": 1.7976931348623157e308, "c": 10**30},
    ],
    ids=["none", "plain", "numbers", "texts", "nested", "tuples", "extremes"],
)
def test_params_come_back_as_they_were(params: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(keep_params(params), allow_nan=False))
    assert repr(kept_params(stored)) == repr(params)


def test_plain_params_are_kept_as_they_are_and_nothing_else_is() -> None:
    assert keep_params({"a": 1.5, "b": [".inf"]}) == {"params": {"a": 1.5, "b": [".inf"]}}


def test_record_of_an_older_raydist_is_read_as_it_is() -> None:
    assert kept_params({"params": {"a": None, "b": ".inf", "c": [1]}}) == {"a": None, "b": ".inf", "c": [1]}
    assert kept_params({}) == {}


def test_place_of_a_secret_that_is_not_kept_changes_nothing() -> None:
    spec = {"params": {"api_key": "***", "b": 1}, PARAM_TYPES: {"number": [["api_key"], ["b", 0], ["gone"]]}}
    assert kept_params(spec) == {"api_key": "***", "b": 1}


def test_text_is_shown_unlike_the_number() -> None:
    assert shown_params(keep_params({"a": math.inf, "b": ".inf", "c": "x"})) == {
        "a": ".inf",
        "b": '".inf"',
        "c": "x",
    }


@pytest.mark.parametrize(
    ("text", "number"),
    [(".inf", math.inf), ("-.INF", -math.inf), ("+.inf", math.inf), ("inf", math.inf), ("1e-3", 1e-3)],
)
def test_number_is_read_as_yaml_and_as_python_write_it(text: str, number: float) -> None:
    assert parse_number(text) == number
    assert math.isnan(parse_number(".NaN"))
