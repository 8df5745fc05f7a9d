"""The options on how replicas communicate reach the all-reduce of the gradients."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import pytest

from tests.support.communication_functions import BFLOAT16, FLOAT, HALF
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.communication_functions"
TWO_WORKERS = {"strategy": "multi_worker_mirrored", "workers": 2}
TWO_DEVICES = {"strategy": "mirrored", "devices": 2}
PLACES = {"2 workers": TWO_WORKERS, "2 devices": TWO_DEVICES, "one device": {}}
RING = {"collective": "ring", "collective_timeout": "77s"}

# Significant bits of each type, the leading one included.
BITS = {"fp16": 11, "bf16": 8}
SCALES = {"usual": 1.0, "beyond fp16": 1e6}


@functools.cache
def trained(keras: str, where: str, **options: str | int) -> list[TaskProcess]:
    cluster = Cluster(**PLACES[where], keras=keras)
    return run_function(f"{FUNCTIONS}:every_way", cluster, job_options=options)


def test_options_are_attributes_of_every_collective_that_is_traced(keras: str) -> None:
    for task in trained(keras, "2 workers", **RING):
        for way in ("fit", "train_steps", "bare"):
            found = task.values[way]
            assert found, way
            assert {(one["hint"], one["timeout"]) for one in found} == {("ring", 77.0)}, way


def test_cross_device_ops_decide_how_gradients_are_summed() -> None:
    [one], [hierarchical] = (
        trained("3", "2 devices", cross_device_ops=ops) for ops in ("one_device", "hierarchical")
    )
    # One by one, or all four variables packed as one.
    for task, count in ((one, 4), (hierarchical, 1)):
        assert sum("sgd/" in each["name"] for each in task.values["fit sums"]) == count
    np.testing.assert_array_equal(hierarchical.arrays["weights"], one.arrays["weights"])
    [alone] = trained("3", "one device")
    np.testing.assert_allclose(one.arrays["weights"], alone.arrays["weights"], atol=1e-6)


def test_collective_that_a_worker_does_not_join_in_time_fails() -> None:
    waiting, _ = run_function(
        f"{FUNCTIONS}:late", Cluster(**TWO_WORKERS), seconds=20, job_options={"collective_timeout": "3s"}
    )
    assert "timed out" in waiting.values["error"]
    assert 2 < waiting.values["seconds"] < 15


@functools.cache
def compressed(kind: str, keras: str, where: str) -> Mapping[str, list[TaskProcess]]:
    cluster = Cluster(**PLACES[where], keras=keras)
    calls = {name: (f"{FUNCTIONS}:constant_gradients", {"scale": scale}) for name, scale in SCALES.items()}
    return run_in_turn(calls, cluster, job_options={"compress_gradients": kind})


@pytest.mark.exhaustive("2 devices", "legacy", covered_by="the same with 2 workers")
@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("keras", "where"),
    [("3", "2 workers"), ("legacy", "2 devices"), ("legacy", "2 workers"), ("3", "2 devices")],
)
def test_compressed_gradients_are_off_by_the_bound_that_is_stated_at_most(
    kind: str, keras: str, where: str
) -> None:
    for name in SCALES:
        tasks = compressed(kind, keras, where)[name]
        for task in tasks:
            for weight, tolerance in (("dense", 1e-6), ("table", 1e-6)):
                np.testing.assert_array_equal(task.arrays[weight], tasks[0].arrays[weight])
                expected, replicas = _gradients(task.arrays, weight)
                # Steps of SGD at rate 1 from 0: the errors of the sums, and float32's own.
                bound = _bound(kind, replicas) + tolerance * np.abs(replicas).sum(axis=(0, 1))
                error = np.abs(task.arrays[weight] + expected)
                assert (error <= bound).all(), (name, weight, error, bound)
                # Something was rounded: the test would not see a compression that does nothing.
                assert (error > tolerance * np.abs(expected)).any(), (name, weight)


def _gradients(arrays: Mapping[str, np.ndarray], weight: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sum of the gradients of 3 steps, and those of each step and replica, in float64."""
    x, ids = arrays["x"].astype("float64") / 8, arrays["ids"][:, 0]
    parts = np.arange(24).reshape(3, 2, 4)  # steps, replicas, examples
    if weight == "dense":
        own = x[parts].sum(axis=2)[..., None]
    else:
        own = np.zeros((3, 2, 5, 2))
        for step, replica in np.ndindex(3, 2):
            for example in parts[step, replica]:
                own[step, replica, ids[example]] += x[example, 3:5]
    return own.sum(axis=(0, 1)), own


def _bound(kind: str, own: np.ndarray) -> np.ndarray:
    """Returns what the guide states: 2 replicas' roundings, and what fp16 has below its least normal number.

    Args:
      own: Gradients `[steps, replicas, ...]`.
    """
    sums = np.abs(own).sum(axis=(0, 1))
    bound = 2 * 2.0 ** -BITS[kind] * sums
    if kind == "fp16":
        largest = np.abs(own).max(axis=tuple(range(2, own.ndim))).sum()
        bound = bound + 2 * 2.0**-39 * largest
    return bound


@pytest.mark.exhaustive("bf16", covered_by="[fp16]")
@pytest.mark.parametrize(("kind", "types"), [("fp16", {HALF, FLOAT}), ("bf16", {BFLOAT16})])
def test_compressed_gradients_are_sent_as_such_and_the_run_says_what_it_costs(
    kind: str, types: set[int]
) -> None:
    for task in compressed(kind, "3", "2 workers")["usual"]:
        found = task.values["collectives"]
        # Other functions than the step add up what the workers tell each other.
        steps = {name for name, kind in found if kind in types - {FLOAT}}
        # In float32 go the scales of fp16.
        assert {kind for name, kind in found if name in steps} == types
        [sentence] = [one for one in task.values["notes"] if "--compress-gradients" in one]
        assert "are not equal to those of one device" in sentence
