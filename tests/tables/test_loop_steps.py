"""Steps of ctx.train_steps on 2, 3 and 4 replicas: as on one device, or the first words of a note say that
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
UNKNOWN = "gives the gradients of one device could not be shown"
REFUSED = ("text shown", "nothing shown", "fails in Python")
NORMS = ("norm, mean", "norm, average loss", "norm, sum")
# What a note says of each, in its first words.
TOLD = {
    **dict.fromkeys(
        (
            *("divided outside", "multiplied outside", "divided by an attribute", "divided by an item"),
            *("divided by a default", "divided by an array", "divided by a tensor", "gradients divided"),
            *("a part divided", "masked mean", "boolean mask", "masked mean, scaled", "compares", "branch"),
            *("warm-up", "warm-up of a sum", "warm-up, average loss", "calls Python", "log of sums"),
            *(
                "divided by self",
                "contrast",
                "assigns a sum",
                "by hand, mean",
                "by hand, sum",
                "reduces",
                "two kinds of losses",
                "late part",
            ),
        ),
        UNKNOWN,
    ),
    **dict.fromkeys(("assigns", "assigns on read"), "assigns to center"),
    "clips": "clips or rescales its gradients",
    "dropout": "draws random numbers",
    **dict.fromkeys(NORMS, "normalise each replica's part of the batch by itself"),
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
    "4 devices": Cluster(strategy="mirrored", devices=4),
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
    "2 devices, tf_keras": Cluster(strategy="mirrored", devices=2, keras="legacy"),
    "2 workers, tf_keras": Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy"),
}
# Those on which --sync-batchnorm is set.
SYNCHRONIZED = ("4 devices", "2 workers, tf_keras")


def kinds_of(cluster: str) -> list[str]:
    """Returns the steps of a cluster: with each Keras all that it matters to, on one of its clusters in turn.

    Those that the number of replicas matters to are on all clusters of Keras 3.
    """
    keras = CLUSTERS[cluster].keras
    alike = [one for one in CLUSTERS if CLUSTERS[one].keras == keras]
    kinds = [*STEPS, *OUTSIDE] if keras == "3" else OF_KERAS
    everywhere = OF_NUMBERS if keras == "3" else ()
    turning = [one for one in kinds if one not in everywhere]
    norms = NORMS[:1] if cluster in SYNCHRONIZED else ()
    of_fit = OF_FIT if cluster.startswith("2 devices") else ()
    return list(dict.fromkeys([*everywhere, *turning[alike.index(cluster) :: len(alike)], *norms, *of_fit]))


CASES = [(cluster, kind) for cluster in CLUSTERS for kind in kinds_of(cluster)]


def is_told(cluster: str, kind: str) -> bool:
    kind = kind.removeprefix("fit, ")
    if kind in NORMS and cluster in SYNCHRONIZED:
        return False
    return kind in TOLD or (kind in TOLD_ON_TWO and cluster.startswith("2"))


TRAINING = [one for one in CASES if one[1] not in REFUSED]


@functools.cache
def run(cluster: str) -> list[TaskProcess]:
    options = {"job_options": {"sync_batchnorm": True}} if cluster in SYNCHRONIZED else {}
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


@pytest.mark.parametrize(("cluster", "kind"), [one for one in TRAINING if is_told(*one)])
def test_step_that_may_not_be_as_on_one_device_is_told_in_the_first_words(cluster: str, kind: str) -> None:
    words = TOLD.get(kind.removeprefix("fit, "), UNKNOWN)
    for task in run(cluster):
        assert [note for note in notes_of(task, kind) if words in note.partition(",")[0]] != []
        own, right = task.arrays[f"{kind}/weights"], task.arrays[f"{kind}/right"]
        assert own.shape == right.shape
        if kind.removeprefix("fit, ") in SIZED:
            assert own @ right == pytest.approx(right @ right, rel=0.2)


@pytest.mark.parametrize(("cluster", "kind"), TRAINING)
def test_what_is_shown_is_that_of_one_device_or_told(cluster: str, kind: str) -> None:
    tasks = run(cluster)
    num_replicas = int(cluster[0])
    for task in (one for one in tasks if is_equal(one, kind) and kind not in OF_FIT):
        shown, right = (task.values[f"{kind}/{name}"] for name in ("shown", "right shown"))
        rtol = TOLERANCE.get(kind, 1e-5)
        notes = notes_of(task, kind)
        differing = [name for name in right if not _is_close(shown[name], right[name], rtol)]
        if any("What it returns is shown as the mean over the replicas" in note for note in notes):
            differing = [
                name for name in differing if not _is_close(shown[name] * num_replicas, right[name], rtol)
            ]
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


def test_each_step_is_run_with_each_keras_that_it_matters_to() -> None:
    of_keras = {
        keras: {kind for cluster, kind in CASES if CLUSTERS[cluster].keras == keras}
        for keras in ("3", "legacy")
    }
    assert of_keras == {"3": {*STEPS, *OUTSIDE, *OF_FIT}, "legacy": {*OF_KERAS, *OF_FIT}}


def _is_close(own: Any, right: Any, rtol: float) -> bool:
    return bool(np.isclose(own, right, rtol=rtol, atol=1e-8))
