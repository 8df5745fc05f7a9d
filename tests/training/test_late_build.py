"""Models, optimizers and metrics whose variables are made by the first trace of a step of the user's own."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BUILT, OPTIMIZED = "tests.support.late_build_functions", "tests.support.optimizer_functions"
ONE, TWO_DEVICES = Cluster(), Cluster(strategy="mirrored", devices=2)
TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
LEGACY = replace(ONE, keras="legacy"), replace(TWO_DEVICES, keras="legacy")


@functools.cache
def run(cluster: Cluster) -> dict[str, list[TaskProcess]]:
    names = (
        f"{OPTIMIZED}:assigning_when_built",
        f"{OPTIMIZED}:first_step_outside",
        f"{OPTIMIZED}:made_outside",
    )
    if cluster.keras == "3":
        names = (*names, f"{BUILT}:every_case")
    else:
        names = (*names[1:], f"{BUILT}:losses_of_one_output", f"{BUILT}:unbuilt_inside")
    return run_in_turn({name.partition(":")[2]: (name, {}) for name in names}, cluster, timeout_s=600)


@pytest.mark.exhaustive("multi_worker_mirrored", covered_by="[mirrored-2-keras3]")
@pytest.mark.parametrize("cluster", [TWO_DEVICES, TWO_WORKERS], ids=str)
def test_first_step_makes_variables_on_every_replica(cluster: Cluster) -> None:
    [one] = run(ONE)["every_case"]
    assert one.values == {}
    assert len(one.arrays) >= 14
    for task in run(cluster)["every_case"]:
        assert task.values == {}
        for name, expected in one.arrays.items():
            np.testing.assert_allclose(task.arrays[name], expected, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("cluster", LEGACY, ids=str)
def test_loss_of_one_output_of_two_is_shown_once_and_evaluated_to_a_number(cluster: Cluster) -> None:
    [task] = run(cluster)["losses_of_one_output"]
    assert task.values["shown"] == ["loss"]
    assert task.values["evaluated"] == pytest.approx(task.values["expected"], rel=1e-5)
    assert task.values["notes"] == []


def test_model_that_holds_unbuilt_parts_trains_in_a_plain_fit_of_tf_keras() -> None:
    [expected], [task] = (run(cluster)["unbuilt_inside"] for cluster in LEGACY)
    np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.parametrize("cluster", [ONE, TWO_DEVICES], ids=str)
def test_optimizer_whose_build_assigns_is_built_before_the_first_trace(cluster: Cluster) -> None:
    [task] = run(cluster)["assigning_when_built"]
    for way, weights in task.arrays.items():
        np.testing.assert_allclose(weights, task.arrays["built"], rtol=1e-4, atol=1e-6, err_msg=way)


@pytest.mark.parametrize("cluster", [ONE, TWO_DEVICES, LEGACY[1]], ids=str)
def test_optimizer_of_a_scope_takes_its_first_step_outside_of_it(cluster: Cluster) -> None:
    [task] = run(cluster)["first_step_outside"]
    # With weights of the scope, tf_keras's own updates outside of it are others on several devices.
    ways = task.arrays if cluster.keras == "3" else ("False, True",)
    for way in ways:
        np.testing.assert_allclose(task.arrays[way], task.arrays["plain"], rtol=1e-5, atol=1e-6, err_msg=way)


@pytest.mark.parametrize("cluster", [ONE, TWO_DEVICES, LEGACY[1]], ids=str)
def test_optimizer_that_was_made_outside_of_the_scope_is_compiled_into_it(cluster: Cluster) -> None:
    [task] = run(cluster)["made_outside"]
    for name in ("Adam", "scaled"):
        np.testing.assert_array_equal(task.arrays[f"{name}, True"], task.arrays[f"{name}, False"])
        assert task.values[f"{name}, True, steps"] == 6
    if cluster.keras == "3":  # tf_keras makes an optimizer's variables in its first step
        where = "make it inside of `with ctx.strategy.scope():`"
        assert task.values["built"].endswith(f"has variables for a model already; {where}")
        assert "its get_config() does not make another one" in task.values["own"]
