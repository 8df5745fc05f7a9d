"""Models, optimizers and metrics whose variables are made by the first trace of a step of the user's own."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = pytest.mark.slow

TARGET = "tests.support.late_build_functions:every_case"


@functools.cache
def run(cluster: Cluster) -> list[TaskProcess]:
    return run_function(TARGET, cluster, timeout_s=600)


@pytest.mark.exhaustive("central_storage", "multi_worker_mirrored", covered_by="[mirrored-2-keras3]")
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(strategy="mirrored", devices=2),
        Cluster(strategy="multi_worker_mirrored", workers=2),
        Cluster(strategy="central_storage", devices=2),
    ],
    ids=str,
)
def test_first_step_makes_variables_on_every_replica(cluster: Cluster) -> None:
    [one] = run(Cluster())
    assert one.values == {}
    assert len(one.arrays) >= 14
    for task in run(cluster):
        assert task.values == {}
        for name, expected in one.arrays.items():
            np.testing.assert_allclose(task.arrays[name], expected, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    "cluster",
    [Cluster(keras="legacy"), Cluster(strategy="mirrored", devices=2, keras="legacy")],
    ids=["one device", "two replicas"],
)
def test_loss_of_one_output_of_two_is_shown_once_and_evaluated_to_a_number(cluster: Cluster) -> None:
    [task] = run_function("tests.support.late_build_functions:losses_of_one_output", cluster)
    assert task.values["shown"] == ["loss"]
    assert task.values["evaluated"] == pytest.approx(task.values["expected"], rel=1e-5)
    assert task.values["notes"] == []


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_optimizer_whose_build_assigns_is_built_before_the_first_trace(devices: int) -> None:
    cluster = Cluster() if devices == 1 else Cluster(strategy="mirrored", devices=devices)
    [task] = run_function("tests.support.optimizer_functions:assigning_when_built", cluster)
    for way, weights in task.arrays.items():
        np.testing.assert_allclose(weights, task.arrays["built"], rtol=1e-4, atol=1e-6, err_msg=way)


def test_model_that_holds_unbuilt_parts_trains_in_a_plain_fit_of_tf_keras() -> None:
    target = "tests.support.late_build_functions:unbuilt_inside"
    [expected] = run_function(target, Cluster(keras="legacy"))
    for task in run_function(target, Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy")):
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    ("devices", "keras"),
    [(1, "3"), *(pytest.param(2, keras, marks=pytest.mark.slow) for keras in ("3", "legacy"))],
)
def test_optimizer_of_a_scope_takes_its_first_step_outside_of_it(devices: int, keras: str) -> None:
    strategy = "one_device" if devices == 1 else "mirrored"
    cluster = Cluster(strategy=strategy, devices=None if devices == 1 else devices, keras=keras)
    [task] = run_function("tests.support.optimizer_functions:first_step_outside", cluster)
    # With weights of the scope, tf_keras's own updates outside of it are others on several devices.
    ways = task.arrays if keras == "3" else ("False, True",)
    for way in ways:
        np.testing.assert_allclose(task.arrays[way], task.arrays["plain"], rtol=1e-5, atol=1e-6, err_msg=way)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    ("workers", "keras"), [(1, "3"), (2, "3"), pytest.param(2, "legacy", marks=pytest.mark.slow)]
)
def test_optimizer_that_was_made_outside_of_the_scope_is_compiled_into_it(workers: int, keras: str) -> None:
    strategy = "one_device" if workers == 1 else "multi_worker_mirrored"
    cluster = Cluster(strategy=strategy, workers=workers, keras=keras)
    for task in run_function("tests.support.optimizer_functions:made_outside", cluster):
        for name in ("Adam", "scaled"):
            np.testing.assert_array_equal(task.arrays[f"{name}, True"], task.arrays[f"{name}, False"])
            assert task.values[f"{name}, True, steps"] == 6
        if keras == "3":  # tf_keras makes an optimizer's variables in its first step
            where = "make it inside of `with ctx.strategy.scope():`"
            assert task.values["built"].endswith(f"has variables for a model already; {where}")
            assert "its get_config() does not make another one" in task.values["own"]
