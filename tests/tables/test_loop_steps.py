"""Steps of ctx.train_steps on 2 and 3 replicas: as on one device, or the first words of a note say that
this is not known.

Each task also trains by TensorFlow alone, eagerly and on one device, which is what is right.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.support.loop_functions import OF_FIT, OF_KERAS, OF_NUMBERS, OUTSIDE, STEPS
from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TARGET = "tests.support.loop_functions:loops"
NUM_STEPS = 3
UNKNOWN = "gives the gradients of one device could not be shown"
REFUSED = ("text shown", "nothing shown", "fails in Python")
NORMS = ("norm, mean", "norm, average loss")
# What a note says of each, in its first words.
TOLD = {
    **dict.fromkeys(
        (
            *("divided outside", "divided by self", "gradients divided", "a part divided", "late part"),
            *("masked mean", "boolean mask", "compares", "contrast", "branch", "warm-up", "warm-up of a sum"),
            *("calls Python", "log of sums", "assigns a sum", "by hand, mean", "by hand, sum", "reduces"),
            "two kinds of losses",
        ),
        UNKNOWN,
    ),
    **dict.fromkeys(("assigns", "assigns on read"), "assigns to center"),
    "clips": "clips or rescales its gradients",
    "dropout": "draws random numbers",
    **dict.fromkeys(NORMS, "normalise each replica's part of the batch by itself"),
}
# And of some, with its cause; each is written once.
CAUSES = {
    **{
        kind: (f"because it divides its losses by {name},",)
        for kind, name in (
            ("divided outside", "number"),
            ("fit, divided outside", "number"),
            ("divided by self", "self.number"),
        )
    },
    "mean": ("so gradients are averaged over the",),
    "masked mean": ("such as the sum of a mask",),
    "late part": ("because its losses depend on how a batch is divided",),
    "calls Python": ("because it calls Python",),
    "assigns a sum": ("because they depend on center",),
    "by hand, sum": ("because it gives them to no optimizer",),
    "warm-up": ("its first gradients are zero",),
    "metric, uneven": ("returns average, which",),
    "shown": ("returns biggest, norm, which", "returned 0 as padded for the first batch"),
}
# What is told of them does not excuse gradients of another size.
SIZED = ("dropout", *NORMS)
# Two is the number of replicas.
TOLD_ON_TWO = ("divided by a global",)
# Of types with few digits.
TOLERANCE = {"mixed_float16": 2e-3, "mixed_bfloat16": 2e-2}
CLUSTERS = {
    "2 devices": Cluster(strategy="mirrored", devices=2),
    "3 devices": Cluster(strategy="mirrored", devices=3),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
    "2 devices, tf_keras": Cluster(strategy="mirrored", devices=2, keras="legacy"),
}
SYNCHRONIZED = "3 devices"  # where --sync-batchnorm is set
# Those that the number of replicas does not matter to are each on one of these; 2 workers take twice as long.
TURNS = ("2 devices", "3 devices", "2 devices", "3 devices", "2 workers")


def kinds_of(cluster: str) -> list[str]:
    """Returns the steps of a cluster: with each Keras all that it matters to."""
    of_fit = OF_FIT if cluster.startswith("2 devices") else ()
    if CLUSTERS[cluster].keras == "legacy":
        return [*OF_KERAS, *of_fit]
    others = [one for one in (*STEPS, *OUTSIDE) if one not in OF_NUMBERS]
    turning = [one for index, one in enumerate(others) if TURNS[index % len(TURNS)] == cluster]
    norms = NORMS[:1] if cluster == SYNCHRONIZED else ()
    return list(dict.fromkeys([*OF_NUMBERS, *turning, *norms, *of_fit]))


CASES = [(cluster, kind) for cluster in CLUSTERS for kind in kinds_of(cluster)]
TRAINING = [one for one in CASES if one[1] not in REFUSED]


def is_told(cluster: str, kind: str) -> bool:
    kind = kind.removeprefix("fit, ")
    is_synchronized = kind in NORMS and cluster == SYNCHRONIZED
    return (kind in TOLD and not is_synchronized) or (kind in TOLD_ON_TWO and cluster.startswith("2"))


@functools.cache
def run(cluster: str) -> list[TaskProcess]:
    options = {"job_options": {"sync_batchnorm": True}} if cluster == SYNCHRONIZED else {}
    return run_function(TARGET, CLUSTERS[cluster], kinds=kinds_of(cluster), timeout_s=1500, **options)


def is_equal(task: TaskProcess, kind: str) -> bool:
    own, right = task.arrays[f"{kind}/weights"], task.arrays[f"{kind}/right"]
    atol = TOLERANCE.get(kind, 1e-6)
    return own.shape == right.shape and len(own) > 0 and np.allclose(own, right, atol=atol, rtol=0)


def notes_of(task: TaskProcess, kind: str) -> list[str]:
    return list(task.values[f"{kind}/notes"])


@pytest.mark.parametrize(("cluster", "kind"), [one for one in TRAINING if not is_told(*one)])
def test_step_trains_as_on_one_device_and_promises_no_less(cluster: str, kind: str) -> None:
    for task in run(cluster):
        notes = notes_of(task, kind)
        assert is_equal(task, kind), (task.values.get(f"{kind}/error"), notes)
        assert [note for note in notes if any(words in note for words in TOLD.values())] == []
        assert_causes(notes, kind)
        assert_shown_or_told(task, cluster, kind)


@pytest.mark.parametrize(("cluster", "kind"), [one for one in TRAINING if is_told(*one)])
def test_step_that_may_not_be_as_on_one_device_is_told_in_the_first_words(cluster: str, kind: str) -> None:
    words = TOLD.get(kind.removeprefix("fit, "), UNKNOWN)
    for task in run(cluster):
        assert [note for note in notes_of(task, kind) if words in note.partition(",")[0]] != []
        assert_causes(notes_of(task, kind), kind)
        own, right = task.arrays[f"{kind}/weights"], task.arrays[f"{kind}/right"]
        assert own.shape == right.shape
        if kind == "calls Python":  # and not before it runs
            assert task.values[f"{kind}/calls"] == NUM_STEPS * (CLUSTERS[cluster].devices or 1)
        if kind.removeprefix("fit, ") in SIZED:
            assert own @ right == pytest.approx(right @ right, rel=0.2)
        if is_equal(task, kind):
            assert_shown_or_told(task, cluster, kind)


def assert_causes(notes: list[str], kind: str) -> None:
    for piece in CAUSES.get(kind, ()):
        assert len([note for note in notes if piece in note]) == 1, (piece, notes)


def assert_shown_or_told(task: TaskProcess, cluster: str, kind: str) -> None:
    if kind in OF_FIT:
        return
    shown, right = (task.values[f"{kind}/{name}"] for name in ("shown", "right shown"))
    rtol = TOLERANCE.get(kind, 1e-5)
    notes = notes_of(task, kind)
    differing = [name for name in right if not _is_close(shown[name], right[name], rtol)]
    if any("What it returns is shown as the mean over the replicas" in note for note in notes):
        num_replicas = int(cluster[0])
        differing = [one for one in differing if not _is_close(shown[one] * num_replicas, right[one], rtol)]
    told = " ".join(note for note in notes if "returns" in note or "returned" in note)
    assert [name for name in differing if name not in told] == [], told


@pytest.mark.parametrize(("cluster", "kind"), [one for one in CASES if one[1] in REFUSED])
def test_step_that_cannot_be_run_ends_with_its_own_error(cluster: str, kind: str) -> None:
    pieces = {
        "text shown": ("step_fn Bench.step", "returned a tensor of type string as 'text'"),
        "nothing shown": ("step_fn Bench.step", "returned NoneType as 'nothing'"),
        "fails in Python": ("not these numbers",),
    }
    for task in run(cluster):
        assert all(piece in task.values[f"{kind}/error"] for piece in pieces[kind])


def test_each_step_is_run() -> None:
    assert {kind for cluster, kind in CASES if CLUSTERS[cluster].keras == "3"} == {*STEPS, *OUTSIDE, *OF_FIT}


def _is_close(own: Any, right: Any, rtol: float) -> bool:
    return bool(np.isclose(own, right, rtol=rtol, atol=1e-8))
