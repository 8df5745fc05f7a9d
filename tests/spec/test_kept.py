"""Params in a run's record: strict JSON, from which every value comes back as it was."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from raydist.spec.params import PARAM_TYPES, keep_params, kept_params, parse_number, shown_params
from tests.support.any_values import any_values

TEXTS = st.sampled_from([".inf", "-.inf", ".nan", "inf", "NaN", "null", "1e-3"]) | st.text(max_size=5)
PARAMS = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@any_values
@given(PARAMS)
@example({"a": 1e-320, "b": 1.7976931348623157e308, "c": 10**30, "d": -0.0})
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
