"""Calls that all workers make together, and what is told of one that a worker makes alone."""

from __future__ import annotations

import functools
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
from tests.support.processes import Cluster, TaskProcess, run_in_turn, started

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.alone_functions"
WORKERS = ("worker/0", "worker/1")
PLACES = (
    *("before", "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_begin", "on_test_end", "on_epoch_end", "on_train_end", "after"),
)
CALLS = (
    *("model.fit", "model.evaluate", "model.predict", "model.train_on_batch", "ctx.fit", "ctx.evaluate"),
    *("ctx.predict", "ctx.train_steps", "ctx.save", "ctx.restore"),
    *("model.test_on_batch", "model.predict_on_batch"),
)
# Each call in a place, each place in a call at least, and other pairs with the other Keras.
CELLS = [
    (keras, call, PLACES[(index + shift) % len(PLACES)])
    for keras, shift in (("3", 1), ("legacy", 4))
    for index, call in enumerate(CALLS)
]


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


@pytest.mark.exhaustive(
    *("legacy", "model.test_on_batch", "model.predict_on_batch"),
    covered_by="Keras 3; model.train_on_batch; its place in another call",
)
@pytest.mark.parametrize(("keras", "call", "place"), CELLS)
def test_call_of_one_worker_is_told_with_both_lines(
    keras: str, call: str, place: str, tmp_path: Path
) -> None:
    check(sentence_of(keras, call, place, tmp_path), call, place)


@pytest.mark.parametrize("name", ["reduce", "own step", "variable"])
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


@functools.cache
def run(keras: str, *, is_virtual: bool) -> dict[str, list[TaskProcess]]:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=3 if is_virtual else 2, keras=keras)
    calls: dict[str, tuple[str, dict[str, object]]] = {
        name: (f"{FUNCTIONS}:{name}", {}) for name in ("read_alone", "counted", "changed_after")
    }
    return run_in_turn(calls, cluster, job_options={"virtual_replicas": "4"} if is_virtual else {})


BOTH_WAYS = pytest.mark.parametrize(
    ("keras", "is_virtual"),
    [(keras, is_virtual) for keras in ("3", "legacy") for is_virtual in (False, True)],
)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@BOTH_WAYS
def test_one_worker_reads_alone_what_all_have_trained(keras: str, is_virtual: bool) -> None:
    chief, *others = run(keras, is_virtual=is_virtual)["read_alone"]
    assert chief.values["begun"] == []
    shown = set(chief.values["alone"])
    assert {"weights", "metrics", "saved", "checkpoint"} <= shown
    for other in others:
        for name, values in other.values["after"].items():
            for of_epoch in chief.values["alone"][name]:
                assert np.shape(of_epoch) == np.shape(values)
            np.testing.assert_allclose(chief.values["alone"][name][-1], values, rtol=1e-6, err_msg=name)


def test_metric_that_changes_outside_of_calls_is_read_anew(keras: str) -> None:
    for task_process in run(keras, is_virtual=False)["changed_after"]:
        shown = {"own function": 4.0, "of one worker": 5.0, "reset": 0.0, "restored": 6.0}
        assert task_process.values == {"evaluated": 0.0, **shown}


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@BOTH_WAYS
def test_workers_count_what_they_do_together_alike(keras: str, is_virtual: bool) -> None:
    first, *others = run(keras, is_virtual=is_virtual)["counted"]
    assert all(one.values == first.values for one in others)
    counts = list(first.values.values())
    together = counts[:-1]  # the last is of a function without collectives
    assert all(after > before for before, after in itertools.pairwise(together))
    assert counts[-1] == counts[-2]
