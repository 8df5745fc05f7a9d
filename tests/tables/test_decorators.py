"""tf.function at each place where people put it: each cell is compared with Keras alone on one device."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

# Each cluster trains all cells in one process a task.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FUNCTIONS = "tests.support.decorator_functions"
TWO_WORKERS = {"strategy": "multi_worker_mirrored", "workers": 2}
CLUSTERS = {
    "one device": {},
    "2 workers": TWO_WORKERS,
    "mirrored": {"strategy": "mirrored", "devices": 2},
    "virtual": TWO_WORKERS,
    "servers": {"strategy": "parameter_server", "workers": 1, "ps": 1},
}
# The programs of decorator_functions.py, which imports TensorFlow.
PLACES = (
    *("own_train_step", "train_step_of_a_mean", "helper_of_train_step", "helper_that_makes_a_variable"),
    *("step_of_super", "own_test_step", "test_step_of_super", "own_predict_step", "call_of_model"),
    *("call_of_layer", "loss_function", "keras_loss_inside_a_function", "loss_object_in_a_function"),
    *("call_of_loss", "metric_function", "update_of_metric", "update_of_optimizer", "apply_of_optimizer"),
    *("schedule", "map_function", "regularizer", "weighted_loss", "function_of_two_models"),
    *("eager_step", "eager_loss", "several_steps_in_a_call"),
)
# The decorators, and by whom their programs are trained. Each place has all of them, on some cluster; each
# cluster has all places, with one Keras and the other by turns.
WAYS = (
    *(("function", "fit"), ("function", "ctx.fit"), ("jit_compile", "fit")),
    *(("reduce_retracing", "ctx.fit"), ("input_signature", "fit")),
)
# They call what parameter servers have not: eager steps, train_on_batch, `fit` of Keras 3, or several steps
# in a call of Keras's. A variable that a step makes is refused there.
NOT_ON_SERVERS = (
    *("eager_step", "eager_loss", "step_of_super", "function_of_two_models", "several_steps_in_a_call"),
    "helper_that_makes_a_variable",
)
# A tf.function takes no variable of Keras 3, and add_loss no tensor of another graph. On one device, where
# XLA compiles the function, it is called as in plain Keras, which fails too.
# tf_keras's optimizer of the second model makes its variables in the second call of the function.
NOT_COMPILED = (
    *("call_of_layer", "schedule", "regularizer", "update_of_optimizer"),
    *("apply_of_optimizer", "function_of_two_models"),
)


def cells_of(name: str, keras: str) -> list[tuple[str, str, str]]:
    """Returns the places of a cluster, each with one decorator and one way in turn."""
    if name == "servers":
        return [(place, "function", "ctx.fit") for place in PLACES if place not in NOT_ON_SERVERS]
    turn = {"one device": 2 * (keras == "3"), "2 workers": 1, "mirrored": 3, "virtual": 4}[name]
    cells = [(place, *WAYS[(turn + index) % len(WAYS)]) for index, place in enumerate(PLACES)]
    return [one for one in cells if not _is_left_out(name, keras, *one)]


def _is_left_out(name: str, keras: str, place: str, decorator: str, way: str) -> bool:
    """Whether TensorFlow alone fails too."""
    is_compiled = decorator == "jit_compile"
    if name == "one device":
        return is_compiled and place in NOT_COMPILED
    # On several devices of a task XLA reads no metric, and tf_keras cannot make a variable in a step.
    return name == "mirrored" and (
        (is_compiled and place == "update_of_metric")
        or (keras == "legacy" and place == "helper_that_makes_a_variable")
    )


def is_exhaustive(name: str, keras: str, place: str) -> bool:
    """Whether the other Keras is tried there. One device is quick, and has both."""
    turn = list(CLUSTERS).index(name) + PLACES.index(place)
    return name != "one device" and keras != ("3", "legacy")[turn % 2]


EXHAUSTIVE = pytest.mark.exhaustive(covered_by="the other Keras there, and this one on other clusters")
CELLS = [
    pytest.param(name, keras, *cell, marks=EXHAUSTIVE if is_exhaustive(name, keras, cell[0]) else ())
    for name in CLUSTERS
    for keras in ("3", "legacy")
    for cell in cells_of(name, keras)
]


@functools.cache
def run(name: str, keras: str, exhaustive: bool = False) -> dict[str, list[TaskProcess]]:
    cluster = Cluster(keras=keras, **CLUSTERS[name])
    options = {"job_options": {"virtual_replicas": "4"}} if name == "virtual" else {}
    calls: dict[str, tuple[str, dict[str, object]]] = {
        # What plain Keras trains is the same everywhere.
        "cells": (
            f"{FUNCTIONS}:train_cells",
            {
                "cells": [
                    one for one in cells_of(name, keras) if is_exhaustive(name, keras, one[0]) == exhaustive
                ],
                "plain": PLACES if name == "one device" else (),
            },
        )
    }
    if name != "servers" and not exhaustive:
        calls["loop"] = (f"{FUNCTIONS}:loop_of_decorated_steps", {})
        calls["accumulated"] = (f"{FUNCTIONS}:accumulated", {})
    return run_in_turn(calls, cluster, timeout_s=3000, **options)


@pytest.mark.parametrize(("name", "keras", "place", "decorator", "way"), CELLS)
def test_decorated_code_trains_as_plain_code_of_one_device(
    name: str, keras: str, place: str, decorator: str, way: str
) -> None:
    [plain_task] = run("one device", keras)["cells"]
    plain = _results(plain_task, f"{place}/none/plain/")
    for task in run(name, keras, is_exhaustive(name, keras, place))["cells"]:
        found = _results(task, f"{place}/{decorator}/{way}/")
        assert "error" not in found, found["error"]
        assert "weights" in plain
        for key in found:
            np.testing.assert_allclose(found[key], plain[key], rtol=1e-5, atol=1e-5, err_msg=key)


def _results(task: TaskProcess, prefix: str) -> dict[str, Any]:
    results = {**task.arrays, **task.values}
    return {key.removeprefix(prefix): one for key, one in results.items() if key.startswith(prefix)}


@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("name", [one for one in CLUSTERS if one != "servers"])
class TestOtherWays:
    def test_a_decorated_step_of_a_loop_trains_as_a_bare_one(self, name: str, keras: str) -> None:
        for task in run(name, keras)["loop"]:
            for decorator in ("function", "reduce_retracing"):
                np.testing.assert_allclose(task.arrays[decorator], task.arrays["none"], rtol=1e-5, atol=1e-6)

    def test_a_decorated_step_accumulates_as_one_larger_batch(self, name: str, keras: str) -> None:
        for task in run(name, keras)["accumulated"]:
            np.testing.assert_allclose(task.arrays["ctx.fit"], task.arrays["plain"], rtol=1e-5, atol=1e-6)
