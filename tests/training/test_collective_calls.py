"""Calls that all workers make together, and what is told of one that a worker makes alone."""

from __future__ import annotations

import itertools
import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from raydist.controller.unequal_calls import unequal_calls
from raydist.outcome.status import CallState, Collective
from tests.support.fakes import attempt_of, make_status, task
from tests.support.processes import Cluster, run_function, started

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.alone_functions"
WORKERS = ("worker/0", "worker/1")
PLACES = (
    *("before", "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_end", "on_epoch_end", "on_train_end", "after"),
)
CALLS = (
    *("model.fit", "model.evaluate", "model.predict", "model.train_on_batch", "model.test_on_batch"),
    *("model.predict_on_batch", "ctx.fit", "ctx.evaluate", "ctx.predict", "ctx.train_steps", "ctx.save"),
    "ctx.restore",
)
# Each call in two places, each place in two calls at least, and other pairs with the other Keras.
CELLS = [
    (keras, call, PLACES[(index + shift + (keras == "3")) % len(PLACES)])
    for keras in ("3", "legacy")
    for index, call in enumerate(CALLS)
    for shift in (0, 4)
    # All workers call ctx.fit after it, which is the same call.
    if (call, PLACES[(index + shift + (keras == "3")) % len(PLACES)]) != ("ctx.fit", "before")
]
QUICK = [("3", "model.evaluate", "on_epoch_end"), ("legacy", "model.predict", "after")]


def sentence_of(keras: str, call: str, place: str, folder: Path) -> str:
    """Returns what the controller says of two workers of which the chief makes a call alone."""
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    deadline_s = time.monotonic() + 120
    with started(f"{FUNCTIONS}:alone", cluster, call=call, place=place, folder=str(folder)) as tasks:
        while time.monotonic() < deadline_s and tasks[0].process.poll() is None:
            statuses = [make_status(name, collective=standing(name, folder)) for name in WORKERS]
            cause = unequal_calls(attempt_of(map(task, WORKERS), *statuses), statuses)
            if cause is not None:
                return cause.failure.message
            time.sleep(0.1)
        raise AssertionError("nothing was told\n" + "\n".join(one.text() for one in tasks))


def standing(name: str, folder: Path) -> Collective | None:
    file = folder / f"{task(name).path_name}.json"
    if not file.exists():
        return None
    fields = json.loads(file.read_text())
    return Collective(**{**fields, "state": CallState[fields["state"]]})


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    ("keras", "call", "place"), [*QUICK, *(pytest.param(*cell, marks=pytest.mark.slow) for cell in CELLS)]
)
def test_call_of_one_worker_is_told_with_both_lines(
    keras: str, call: str, place: str, tmp_path: Path
) -> None:
    check(sentence_of(keras, call, place, tmp_path), call, place)


@pytest.mark.parametrize("name", ["reduce", "gather", "own step", "variable"])
def test_collective_of_one_worker_alone_is_told(name: str, tmp_path: Path) -> None:
    sentence = sentence_of("3", name, "after", tmp_path)
    assert re.fullmatch(
        r"worker/0 waits for the other workers in \S*alone_functions\.py:\d+ \(\S+\), worker/1 has "
        "returned from the train function: all workers take part, or none",
        sentence,
    )


def check(sentence: str, call: str, place: str) -> None:
    line = r"in \S*alone_functions\.py:\d+ \(\S+\)"
    elsewhere = rf"(calls ctx\.fit|waits for the other workers) {line}"
    if place in ("on_train_end", "after"):
        elsewhere = "has returned from the train function"
    rule = r"make (this call, or none|the same calls, in one order)"
    assert re.fullmatch(
        rf"worker/0 calls {re.escape(call)} {line}, worker/1 {elsewhere}: all workers {rule}", sentence
    )


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    ("keras", "options"),
    [
        pytest.param("3", {}, id="3"),
        pytest.param("legacy", {}, id="legacy"),
        pytest.param("3", {"virtual_replicas": "3"}, id="virtual", marks=pytest.mark.slow),
        pytest.param("legacy", {"virtual_replicas": "3"}, id="legacy-virtual", marks=pytest.mark.slow),
    ],
)
def test_one_worker_reads_alone_what_all_have_trained(keras: str, options: dict[str, str]) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    chief, other = run_function(f"{FUNCTIONS}:read_alone", cluster, job_options=options)
    assert chief.values["begun"] == []
    shown = set(chief.values["alone"])
    assert {"weights", "metrics", "saved", "checkpoint"} <= shown
    for name, values in other.values["after"].items():
        for of_epoch in chief.values["alone"][name]:
            assert np.shape(of_epoch) == np.shape(values)
        np.testing.assert_allclose(chief.values["alone"][name][-1], values, rtol=1e-6, err_msg=name)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", pytest.param("legacy", marks=pytest.mark.slow)])
def test_metric_that_changes_outside_of_calls_is_read_anew(keras: str) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    for task_process in run_function(f"{FUNCTIONS}:changed_after", cluster):
        shown = {"own function": 4.0, "of one worker": 5.0, "reset": 0.0, "restored": 6.0}
        assert task_process.values == {"evaluated": 0.0, **shown}


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    ("keras", "workers", "devices", "options"),
    [
        pytest.param("3", 2, None, {}, id="3"),
        pytest.param("legacy", 2, None, {}, id="legacy"),
        pytest.param("3", 2, 2, {}, id="2-devices", marks=pytest.mark.slow),
        pytest.param("3", 3, None, {"virtual_replicas": "4"}, id="virtual", marks=pytest.mark.slow),
        pytest.param(
            "legacy", 3, None, {"virtual_replicas": "4"}, id="legacy-virtual", marks=pytest.mark.slow
        ),
    ],
)
def test_workers_count_what_they_do_together_alike(
    keras: str, workers: int, devices: int | None, options: dict[str, str]
) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=workers, devices=devices, keras=keras)
    first, *others = run_function(f"{FUNCTIONS}:counted", cluster, job_options=options)
    assert all(one.values == first.values for one in others)
    counts = list(first.values.values())
    together = counts[:-1]  # the last is of a function without collectives
    assert all(after > before for before, after in itertools.pairwise(together))
    assert counts[-1] == counts[-2]
