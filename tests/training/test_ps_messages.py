"""Steps under ParameterServer whose reads and gradients travel together train what they train alone."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function
from tests.support.ps_programs import NAMES
from tests.support.selected import selected

pytestmark = pytest.mark.slow

PROGRAMS = "tests.support.ps_programs"
SLOW = pytest.mark.slow


@functools.cache
def trained(cluster: Cluster, names: tuple[str, ...]) -> TaskProcess:
    return run_function(f"{PROGRAMS}:train", cluster, names=names, timeout_s=500)[0]


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("name", NAMES)
def test_one_worker_trains_what_one_device_trains(
    request: pytest.FixtureRequest, name: str, keras: str
) -> None:
    names = selected(request, "name", keras=keras)
    alone = trained(Cluster(keras=keras), names).arrays[name]
    served = trained(Cluster(strategy="parameter_server", workers=1, ps=2, keras=keras), names).arrays[name]
    np.testing.assert_allclose(served, alone, rtol=0, atol=2e-5)


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", pytest.param("legacy", marks=SLOW)])
def test_messages_of_a_step_do_not_grow_with_the_number_of_layers(keras: str) -> None:
    [chief] = run_function(
        f"{PROGRAMS}:messages", Cluster(strategy="parameter_server", workers=1, ps=2, keras=keras)
    )
    assert chief.values["2"] == chief.values["6"]
    # Weights from each ps, gradients to each, the step's number to one ps, and the rate to the other.
    # tf_keras makes numbers on the worker, too, which TensorFlow moves.
    assert chief.values["6"] <= {"3": 6, "legacy": 8}[keras]


@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_steps_of_a_turn_ask_once_for_rate_and_number(keras: str) -> None:
    where = Cluster(strategy="parameter_server", workers=1, ps=2, keras=keras)
    [chief] = run_function(f"{PROGRAMS}:messages", where, unroll=10)
    # Weights from each ps and gradients to each in each step, the number and the rate once.
    assert chief.values["6"] == {"3": 10 * 4 + 2, "legacy": 10 * 5 + 3}[keras]
