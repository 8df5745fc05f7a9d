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
    "mirrored": Cluster(strategy="mirrored", devices=2),
    "mirrored, tf_keras": Cluster(strategy="mirrored", devices=2, keras="legacy"),
    "2 workers": Cluster(**TWO_WORKERS),  # type: ignore[arg-type]
    "virtual": Cluster(**TWO_WORKERS, keras="legacy"),  # type: ignore[arg-type]
    "one device": Cluster(),
    "servers": Cluster(strategy="parameter_server", workers=1, ps=1),
}
# Each place is on the first two, and in turn on one of the others.
TURNS = ("2 workers", "one device", "2 workers", "virtual", "2 workers", "servers")
# The programs of decorator_functions.py, which imports TensorFlow.
PLACES = (
    *("own_train_step", "train_step_of_a_mean", "helper_of_train_step", "helper_that_makes_a_variable"),
    *("step_of_super", "own_test_step", "test_step_of_super", "own_predict_step", "call_of_model"),
    *("call_of_layer", "loss_function", "keras_loss_inside_a_function", "loss_object_in_a_function"),
    *("call_of_loss", "metric_function", "update_of_metric", "update_of_optimizer", "apply_of_optimizer"),
    *("schedule", "map_function", "regularizer", "weighted_loss", "function_of_two_models"),
    *("eager_step", "eager_loss", "several_steps_in_a_call"),
)
# The decorators, and by whom their programs are trained.
WAYS = (
    *(("function", "fit"), ("function", "ctx.fit"), ("jit_compile", "fit")),
    *(("reduce_retracing", "ctx.fit"), ("input_signature", "fit")),
)
# tf_keras cannot make a variable in a step of several devices; parameter servers refuse eager steps.
IMPOSSIBLE = (("mirrored, tf_keras", "helper_that_makes_a_variable"), ("servers", "eager_step"))


def cells_of(name: str) -> list[tuple[str, str, str]]:
    """Returns the places of a cluster, each with one decorator and one way in turn."""
    turn = {"mirrored": 0, "mirrored, tf_keras": 3}.get(name, 4)
    return [
        (place, *(WAYS[(turn + index) % len(WAYS)] if name != "servers" else ("function", "ctx.fit")))
        for index, place in enumerate(PLACES)
        if (name.startswith("mirrored") or TURNS[index % len(TURNS)] == name)
        and (name, place) not in IMPOSSIBLE
    ]


@functools.cache
def run(name: str) -> dict[str, list[TaskProcess]]:
    options = {"job_options": {"virtual_replicas": "4"}} if name == "virtual" else {}
    calls: dict[str, tuple[str, dict[str, object]]] = {
        # What plain Keras trains is the same everywhere.
        "cells": (
            f"{FUNCTIONS}:train_cells",
            {"cells": cells_of(name), "plain": PLACES if name.startswith("mirrored") else ()},
        )
    }
    if name in OTHER_WAYS:
        calls["loop"] = (f"{FUNCTIONS}:loop_of_decorated_steps", {})
        calls["accumulated"] = (f"{FUNCTIONS}:accumulated", {})
    return run_in_turn(calls, CLUSTERS[name], timeout_s=3000, **options)


@pytest.mark.parametrize(
    ("name", "place", "decorator", "way"), [(name, *cell) for name in CLUSTERS for cell in cells_of(name)]
)
def test_decorated_code_trains_as_plain_code_of_one_device(
    name: str, place: str, decorator: str, way: str
) -> None:
    plain_on = "mirrored" if CLUSTERS[name].keras == "3" else "mirrored, tf_keras"
    [plain_task] = run(plain_on)["cells"]
    plain = _results(plain_task, f"{place}/none/plain/")
    for task in run(name)["cells"]:
        found = _results(task, f"{place}/{decorator}/{way}/")
        assert "error" not in found, found["error"]
        assert "weights" in plain
        for key in found:
            np.testing.assert_allclose(found[key], plain[key], rtol=1e-5, atol=1e-5, err_msg=key)


def _results(task: TaskProcess, prefix: str) -> dict[str, Any]:
    results = {**task.arrays, **task.values}
    return {key.removeprefix(prefix): one for key, one in results.items() if key.startswith(prefix)}


OTHER_WAYS = ("2 workers", "mirrored, tf_keras")


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_a_decorated_step_of_a_loop_trains_as_a_bare_one(name: str) -> None:
    for task in run(name)["loop"]:
        for decorator in ("function", "reduce_retracing"):
            np.testing.assert_allclose(task.arrays[decorator], task.arrays["none"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_a_decorated_step_accumulates_as_one_larger_batch(name: str) -> None:
    for task in run(name)["accumulated"]:
        np.testing.assert_allclose(task.arrays["ctx.fit"], task.arrays["plain"], rtol=1e-5, atol=1e-6)
