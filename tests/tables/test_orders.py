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
    orders = tuple(("mse", calls) for calls in table.chosen())
    first = tuple(itertools.product(table.LOSSES, itertools.permutations(table.TRACING, 2)))
    again = tuple(
        (before, (first, f"{then}({after})"))
        for before, after in table.RECOMPILED
        for first, then in itertools.product(("fit", "evaluate", "ctx.fit"), repeat=2)
    )
    return orders + first + again


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


@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("loss", [*table.LOSSES, "sum"])
def test_calls_in_each_order_show_and_train_what_one_device_does(loss: str, keras: str) -> None:
    given = cases()
    own = [one for one in given if one[0] == loss]
    wrong = {one: differing for one in own if (differing := differences(one, given, keras))}
    assert wrong == {}


def test_sequences_have_each_three_calls_in_each_order_and_each_two_tracing_ones_first() -> None:
    found = {three for one in table.chosen() for three in itertools.combinations(one, 3)}
    assert found >= set(itertools.permutations(table.CALLS, 3))
    first = set(itertools.product(table.LOSSES, itertools.permutations(table.TRACING, 2)))
    assert {(loss, calls[:2]) for loss, calls in cases()} >= first
