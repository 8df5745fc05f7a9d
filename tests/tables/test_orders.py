"""Orders of calls: whatever came before, each call shows, and trains, what it does in plain Keras."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function
from tests.tables import sequences as table
from tests.tables.plain import run_plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TARGET = "tests.tables.orders:run_sequences"
Case = tuple[str, tuple[str, ...]]
# What was wrong once: an evaluation before any training, one of a model that was compiled again, and a model
# that is built outside of the scope.
QUICK: tuple[Case, ...] = (
    ("masked_mean", ("fit", "evaluate")),
    ("masked_mean", ("evaluate", "fit")),
    ("masked_mean", ("ctx.evaluate", "ctx.fit")),
    ("sum", ("fit", "evaluate(masked_mean)")),
    ("mse", ("set_weights", "fit", "save_and_load", "ctx.fit")),
)
# Of a loss that depends on how a batch is divided, which is noted.
TOLERANCE = {"masked_mean": 0.1}


def cases() -> tuple[Case, ...]:
    """Returns all cases; of the orders, each is followed by its reverse."""
    orders = tuple(("mse", calls) for calls in table.chosen())
    first = tuple(itertools.product(table.LOSSES, itertools.permutations(table.TRACING, 2)))
    again = tuple(
        (before, (first, f"{then}({after})"))
        for before, after in table.RECOMPILED
        for first, then in itertools.product(("fit", "evaluate", "ctx.fit"), repeat=2)
    )
    return orders + first + again


def half(turn: int) -> tuple[Case, ...]:
    """Returns every other two cases: each half has each two calls in each order, both have each three."""
    return tuple(case for index, case in enumerate(cases()) if index // 2 % 2 == turn)


@functools.cache
def found(given: tuple[Case, ...], keras: str) -> list[dict[str, Any]]:
    """Returns what each of two workers shows in some cases, and last what plain Keras shows."""
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    options = {"export": False}
    tasks = run_function(TARGET, cluster, timeout_s=1800, sequences=given, job_options=options)
    plain = run_plain(TARGET, keras, json.dumps({"sequences": given}))
    return [*(task.values for task in tasks), plain]


def differences(case: Case, given: tuple[Case, ...], keras: str) -> list[str]:
    loss, calls = case
    name = f"{loss} {' '.join(calls)}"
    *tasks, right = (one[name] for one in found(given, keras))
    rtol = max((value for one, value in TOLERANCE.items() if one in name), default=1e-4)
    return [
        f"worker/{index}, {call}: {own} in place of {one}"
        for index, task in enumerate(tasks)
        for call, own, one in zip((*calls, "weights"), task, right, strict=True)
        if np.shape(own) != np.shape(one) or not np.allclose(own, one, rtol=rtol, atol=1e-5)
    ]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_calls_whose_order_mattered_once_are_those_of_one_device(case: Case) -> None:
    assert differences(case, QUICK, "3") == []


OTHER_HALF = pytest.mark.exhaustive(covered_by="the other Keras in the same orders; this one in others")


@pytest.mark.parametrize(
    ("keras", "turn"),
    [
        ("3", 0),
        ("legacy", 1),
        pytest.param("3", 1, marks=OTHER_HALF),
        pytest.param("legacy", 0, marks=OTHER_HALF),
    ],
)
@pytest.mark.parametrize("loss", [*table.LOSSES, "sum"])
def test_calls_in_each_order_show_and_train_what_one_device_does(loss: str, keras: str, turn: int) -> None:
    given = half(turn)
    own = [one for one in given if one[0] == loss]
    wrong = {one: differing for one in own if (differing := differences(one, given, keras))}
    assert wrong == {}


@pytest.mark.parametrize("turn", [0, 1])
def test_each_half_has_each_two_calls_in_each_order(turn: int) -> None:
    found = {two for _, calls in half(turn) for two in itertools.combinations(calls, 2)}
    assert found >= set(itertools.permutations(table.CALLS, 2))


def test_sequences_have_each_three_calls_in_each_order_and_each_two_tracing_ones_first() -> None:
    found = {three for one in table.chosen() for three in itertools.combinations(one, 3)}
    assert found >= set(itertools.permutations(table.CALLS, 3))
    first = set(itertools.product(table.LOSSES, itertools.permutations(table.TRACING, 2)))
    assert {(loss, calls[:2]) for loss, calls in cases()} >= first
