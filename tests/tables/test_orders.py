"""Orders of calls: whatever came before, each call shows, and trains, what it does in plain Keras."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function
from tests.tables.plain import run_plain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TARGET = "tests.tables.orders:run_sequences"
CLUSTERS = {
    "3": Cluster(strategy="multi_worker_mirrored", workers=2),
    "legacy": Cluster(strategy="mirrored", devices=2, keras="legacy"),
}
CALLS = (
    *("compile", "build", "evaluate", "fit", "predict", "train_on_batch", "save_and_load", "set_weights"),
    *("ctx.fit", "ctx.evaluate", "ctx.predict"),
)
# Those that trace functions of a model, by which the loss of the first one may be taken for that of others.
# Each two of them also come first.
TRACING = ("evaluate", "fit", "train_on_batch", "ctx.fit", "ctx.evaluate")
LOSSES = ("mse", "mean", "masked_mean")
# Ways in which one loss is compiled after another one.
RECOMPILED = (("mse", "mean"), ("sum", "masked_mean"), ("mean", "sum"))
Case = tuple[str, tuple[str, ...]]
# What was wrong once: an evaluation before any training, one of a model that was compiled again, and a model
# that is built outside of the scope.
KNOWN: tuple[Case, ...] = (
    ("masked_mean", ("fit", "evaluate")),
    ("masked_mean", ("evaluate", "fit")),
    ("masked_mean", ("ctx.evaluate", "ctx.fit")),
    ("sum", ("fit", "evaluate(masked_mean)")),
    ("mse", ("set_weights", "fit", "save_and_load", "ctx.fit")),
)
# Of a loss that depends on how a batch is divided, which is noted.
TOLERANCE = {"masked_mean": 0.1}


def cases(keras: str) -> tuple[Case, ...]:
    """Returns calls in which each two come in each order; what comes first is with one Keras or the other."""
    turn = list(CLUSTERS).index(keras)
    order = (*CALLS[::2], *CALLS[1::2]) if turn else CALLS
    first = [
        (LOSSES[(index + turn) % len(LOSSES)], calls)
        for index, calls in enumerate(itertools.permutations(TRACING, 2))
    ]
    again = []
    for index, (one, then) in enumerate(itertools.product(("fit", "evaluate", "ctx.fit"), repeat=2)):
        before, after = RECOMPILED[(index + index // 3 + turn) % len(RECOMPILED)]
        again.append((before, (one, f"{then}({after})")))
    known = () if turn else KNOWN
    return tuple(
        dict.fromkeys([*known, ("mse", order), ("mse", order[::-1]), *first[turn::2], *again[turn::2]])
    )


@functools.cache
def found(keras: str) -> list[dict[str, Any]]:
    """Returns what each task shows, and last what plain Keras shows."""
    options = {"export": False}
    tasks = run_function(TARGET, CLUSTERS[keras], timeout_s=1800, sequences=cases(keras), job_options=options)
    plain = run_plain(TARGET, keras, json.dumps({"sequences": cases(keras)}))
    return [*(task.values for task in tasks), plain]


@pytest.mark.parametrize(("keras", "case"), [(keras, case) for keras in CLUSTERS for case in cases(keras)])
def test_calls_in_each_order_show_and_train_what_one_device_does(keras: str, case: Case) -> None:
    loss, calls = case
    name = f"{loss} {' '.join(calls)}"
    *tasks, right = (one[name] for one in found(keras))
    rtol = max((value for one, value in TOLERANCE.items() if one in name), default=1e-4)
    wrong = [
        f"worker/{index}, {call}: {own} in place of {one}"
        for index, task in enumerate(tasks)
        for call, own, one in zip((*calls, "weights"), task, right, strict=True)
        if np.shape(own) != np.shape(one) or not np.allclose(own, one, rtol=rtol, atol=1e-5)
    ]
    assert wrong == []
