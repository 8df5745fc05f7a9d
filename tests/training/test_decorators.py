"""A tf.function inside of a training step does in each context what the code in it says."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.decorator_functions"
TWO_WORKERS = {"strategy": "multi_worker_mirrored", "workers": 2}
PLACES = ["train_step_of_a_mean", "helper_of_train_step", "step_of_super", "update_of_metric"]


@functools.cache
def run(keras: str, workers: int) -> dict[str, list[TaskProcess]]:
    cluster = Cluster(keras=keras, **(TWO_WORKERS if workers == 2 else {}))
    way = "fit" if workers == 2 else "ctx.fit"
    cells = [(place, "function", way) for place in PLACES]
    calls: dict[str, tuple[str, dict[str, object]]] = {
        "cells": (f"{FUNCTIONS}:train_cells", {"cells": cells, "plain": PLACES})
    }
    if workers == 2:
        calls["loop"] = (f"{FUNCTIONS}:loop_of_decorated_steps", {})
        calls["eager"] = (f"{FUNCTIONS}:eager_replicas", {})
    return run_in_turn(calls, cluster)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(("keras", "workers"), [("3", 2), ("legacy", 2), ("3", 1)])
@pytest.mark.parametrize("place", PLACES)
def test_decorated_code_trains_as_plain_code_of_one_device(place: str, keras: str, workers: int) -> None:
    way = "fit" if workers == 2 else "ctx.fit"
    for task in run(keras, workers)["cells"]:
        assert [one for name, one in task.values.items() if name.startswith(f"{place}/")] == []
        plain = f"{place}/none/plain/"
        expected = {
            name.removeprefix(plain): one for name, one in task.arrays.items() if name.startswith(plain)
        }
        assert "weights" in expected
        for name, one in expected.items():
            found = task.arrays[f"{place}/function/{way}/{name}"]
            np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_decorated_step_of_a_loop_trains_as_a_bare_one(keras: str) -> None:
    for task in run(keras, 2)["loop"]:
        for decorator in ("function", "reduce_retracing"):
            np.testing.assert_allclose(task.arrays[decorator], task.arrays["none"], rtol=1e-5, atol=1e-6)
        assert np.abs(task.arrays["none"][:-1] - 1.0).max() > 1e-2


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_decorated_loss_of_an_eager_replica_is_not_what_it_was_outside(keras: str) -> None:
    for replica, task in enumerate(run(keras, 2)["eager"]):
        assert task.values["outside"][1] == 0
        assert task.values["bare"][0][1] == replica
        assert task.values["decorated"] == task.values["bare"]


@functools.cache
def run_net(keras: str) -> dict[str, list[TaskProcess]]:
    names = ("steps_that_change_nothing_at_first", "kept_graph")
    return run_in_turn({name: (f"{FUNCTIONS}:{name}", {}) for name in names}, Cluster(keras=keras))


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_step_that_runs_a_graph_from_before_the_training_ends_with_an_error(keras: str) -> None:
    [task] = run_net(keras)["kept_graph"]
    raised = task.values["raised"]
    assert raised.startswith("UnsupportedError: kept_graph.<locals>.Model.train_step (")
    assert "changed neither weights nor the optimizer's variables" in raised


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_steps_that_may_change_nothing_end_with_no_error(keras: str) -> None:
    [task] = run_net(keras)["steps_that_change_nothing_at_first"]
    assert len(task.values) == 5
    assert {name: raised for name, raised in task.values.items() if raised is not None} == {}
