"""What -p means in a search."""

from __future__ import annotations

from typing import Any

import pytest

from raydist.errors import SpecError
from raydist.spec.params import ParamTexts, merge_params
from raydist.tune.space import Choice, Dimension, Range, Space, parse_space

PARAMS: dict[str, Any] = {
    "rate": 1e-3,
    "units": 64,
    "optimizer": "adam",
    "layers": [64, 32],
    "bias": True,
    "init": None,
}


@pytest.mark.parametrize(
    ("written", "dimension"),
    [
        ("rate=log:1e-4..1e-1", Range(low=1e-4, high=1e-1, is_log=True)),
        ("rate=0..1", Range(low=0.0, high=1.0)),
        ("rate=-1.5..-0.5", Range(low=-1.5, high=-0.5)),
        ("units=16..128", Range(low=16, high=128, is_integer=True)),
        ("units=log:16..128", Range(low=16, high=128, is_log=True, is_integer=True)),
        ("units=32,64, 128", Choice(values=(32, 64, 128))),
        ("rate=1e-3,1", Choice(values=(1e-3, 1.0))),
        ("optimizer=adam,sgd", Choice(values=("adam", "sgd"))),
        ("bias=true,false", Choice(values=(True, False))),
        ("init=1..3", Range(low=1, high=3, is_integer=True)),
        ("init=0.5..3", Range(low=0.5, high=3)),
        ("init=1,text", Choice(values=(1, "text"))),
    ],
)
def test_range_or_values_are_read_by_the_type_of_the_default(written: str, dimension: Dimension) -> None:
    key = written.partition("=")[0]
    assert parse_space(ParamTexts.parse([written]), PARAMS) == Space(dimensions={key: dimension}, fixed={})


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("rate=0.5", 0.5),
        ("units=8", 8),
        ("optimizer=../net.py", "../net.py"),
        ("layers=[8, 4]", [8, 4]),
        ("init=[1, 2]", [1, 2]),
        ("init=../train", "../train"),
    ],
)
def test_single_value_holds_for_all_trials(written: str, value: object) -> None:
    key = written.partition("=")[0]
    assert parse_space(ParamTexts.parse([written]), PARAMS) == Space(dimensions={}, fixed={key: value})


def test_trial_of_a_job_without_params_takes_fixed_and_searched_ones() -> None:
    space = parse_space(ParamTexts.parse(["width=2,4", "epochs=30"]), {})
    job = merge_params({}, [(space.params_of_job({}), "")])
    assert merge_params(job, [({"width": 2}, "")]) == {"width": 2, "epochs": 30}


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("rat=log:1e-4..1e-1", "the job has no such param; did you mean rate?"),
        ("rat=1,2", "the job has no such param"),
        ("rate=1..", "is not a range; write LOW..HIGH"),
        ("rate=log:3", "is not a range; write LOW..HIGH"),
        ("rate=1..2..3", "is not a range"),
        ("rate=log:0..1", "begins at 0, and the range of a logarithm is above 0"),
        ("rate=1..1", "has no numbers between its ends"),
        ("rate=0...inf", "has no numbers between its ends"),
        ("units=0.5..3", "has fractions, and the param is a whole number"),
        ("optimizer=log:1..2", "is a range of numbers, and the param's default is 'adam'"),
        ("bias=0..1", "is a range of numbers, and the param's default is True"),
        ("units=32,many", "params.units is 'many'; write a whole number"),
        ("units=32,,64", "has an empty value"),
        ("units=32,32", "has a value twice"),
        ("units", "has no value; write -p KEY=VALUE"),
    ],
)
def test_what_is_no_range_is_one_sentence(written: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_space(ParamTexts.parse([written]), PARAMS)
    assert words in str(caught.value)


def test_job_without_params_takes_any() -> None:
    space = parse_space(ParamTexts.parse(["rate=log:1e-4..1e-1", "name=text"]), {})
    assert space == Space(
        dimensions={"rate": Range(low=1e-4, high=1e-1, is_log=True)}, fixed={"name": "text"}
    )


@pytest.mark.parametrize(
    ("written", "num_points"),
    [([], 1), (["units=1,2,3", "bias=true,false"], 6), (["units=1,2,3", "rate=0..1"], None)],
)
def test_points_are_counted_where_they_end(written: list[str], num_points: int | None) -> None:
    assert parse_space(ParamTexts.parse(written), PARAMS).num_points == num_points
