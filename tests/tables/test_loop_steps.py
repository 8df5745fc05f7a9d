"""Steps of ctx.train_steps on 2, 3 and 4 replicas: as on one device, or the first words of a note say that
this is not known.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from tests.support.loop_functions import OUTSIDE, STEPS
from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = pytest.mark.slow

TARGET = "tests.support.loop_functions:loops"
REFUSED = ("text shown", "nothing shown", "fails in Python")
# What a note says of each, in its first words.
TOLD = {
    **dict.fromkeys(
        (
            *("divided outside", "multiplied outside", "divided by an attribute", "divided by an item"),
            *("divided by a default", "divided by an array", "divided by a tensor", "gradients divided"),
            *("a part divided", "masked mean", "boolean mask", "masked mean, scaled", "compares", "branch"),
            *("warm-up", "calls Python"),
        ),
        "gives the gradients of one device could not be shown",
    ),
    **dict.fromkeys(("assigns", "assigns on read"), "assigns to center"),
}
# Two is the number of replicas.
TOLD_ON_TWO = ("divided by a global",)
EQUAL = [kind for kind in (*STEPS, *OUTSIDE) if kind not in (*TOLD, *TOLD_ON_TWO, *REFUSED)]
CLUSTERS = {
    "2 devices": Cluster(strategy="mirrored", devices=2),
    "3 devices": Cluster(strategy="mirrored", devices=3),
    "4 devices": Cluster(strategy="mirrored", devices=4),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
    "2 devices, tf_keras": Cluster(strategy="mirrored", devices=2, keras="legacy"),
}
ONE_DEVICE = Cluster()


@functools.cache
def run(cluster: Cluster) -> list[TaskProcess]:
    kinds = [kind for kind in (*STEPS, *OUTSIDE) if kind != "loss object" or cluster.keras == "3"]
    kinds = [kind for kind in kinds if kind != "loss object and mean" or cluster.keras == "3"]
    return run_function(TARGET, cluster, kinds=kinds, timeout_s=1500)


def results(cluster: str, kind: str) -> tuple[TaskProcess, list[TaskProcess]]:
    """Returns what one device, and what each task of a cluster found."""
    chosen = CLUSTERS[cluster]
    if chosen.keras == "legacy" and kind.startswith("loss object"):
        pytest.skip("tf_keras refuses its loss objects in a loop")
    [expected] = run(dataclasses.replace(ONE_DEVICE, keras=chosen.keras))
    return expected, run(chosen)


def is_equal(task: TaskProcess, expected: TaskProcess, kind: str) -> bool:
    own, right = task.arrays[f"{kind}/weights"], expected.arrays[f"{kind}/weights"]
    return own.shape == right.shape and len(own) > 0 and np.allclose(own, right, atol=1e-6, rtol=0)


def notes_of(task: TaskProcess, kind: str) -> list[str]:
    return list(task.values[f"{kind}/notes"])


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("kind", EQUAL)
def test_step_trains_as_on_one_device_and_promises_no_less(kind: str, cluster: str) -> None:
    expected, tasks = results(cluster, kind)
    for task in tasks:
        assert is_equal(task, expected, kind), notes_of(task, kind)
        assert [note for note in notes_of(task, kind) if "gradients of one device could not" in note] == []


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("kind", [*TOLD, *TOLD_ON_TWO])
def test_step_that_may_not_be_as_on_one_device_is_told_in_the_first_words(kind: str, cluster: str) -> None:
    expected, tasks = results(cluster, kind)
    is_told = kind in TOLD or cluster.startswith("2")
    words = TOLD.get(kind, "gives the gradients of one device could not be shown")
    for task in tasks:
        told = [note for note in notes_of(task, kind) if words in note.partition(",")[0]]
        assert told or not is_told
        assert told or is_equal(task, expected, kind)


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("kind", [*EQUAL, *TOLD, *TOLD_ON_TWO])
def test_what_is_shown_is_that_of_one_device_or_told(kind: str, cluster: str) -> None:
    expected, tasks = results(cluster, kind)
    for task in tasks:
        if not is_equal(task, expected, kind):
            continue
        shown, right = (one.values[f"{kind}/shown"] for one in (task, expected))
        differing = [name for name in right if not _is_close(shown[name], right[name])]
        notes = notes_of(task, kind)
        if any("What it returns is shown as the mean over the replicas" in note for note in notes):
            continue
        told = " ".join(note for note in notes if "returns" in note or "returned" in note)
        assert [name for name in differing if name not in told] == [], told


@pytest.mark.parametrize("cluster", CLUSTERS)
@pytest.mark.parametrize("kind", REFUSED)
def test_step_that_cannot_be_run_ends_with_its_own_error(kind: str, cluster: str) -> None:
    pieces = {
        "text shown": ("step_fn Bench.step", "returned a tensor of type string as 'text'"),
        "nothing shown": ("step_fn Bench.step", "returned NoneType as 'nothing'"),
        "fails in Python": ("not these numbers",),
    }
    expected, tasks = results(cluster, kind)
    for task in (expected, *tasks):
        assert all(piece in task.values[f"{kind}/error"] for piece in pieces[kind])


def _is_close(own: Any, right: Any) -> bool:
    return bool(np.isclose(own, right, rtol=1e-5, atol=1e-8))
