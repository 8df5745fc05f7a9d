"""Steps under ParameterServer whose reads and gradients travel together train what they train alone."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn
from tests.support.ps_programs import NAMES
from tests.support.selected import selected

pytestmark = pytest.mark.slow

PROGRAMS = "tests.support.ps_programs"


@functools.cache
def run(strategy: str, keras: str, names: tuple[str, ...]) -> dict[str, TaskProcess]:
    """Returns what the chief has trained and, of parameter servers, how many messages there were."""
    calls: dict[str, tuple[str, dict[str, Any]]] = {"trained": (f"{PROGRAMS}:train", {"names": names})}
    if strategy == "parameter_server":
        calls |= {str(unroll): (f"{PROGRAMS}:messages", {"unroll": unroll}) for unroll in (1, 4)}
    found = run_in_turn(calls, Cluster(strategy=strategy, workers=1, ps=2, keras=keras), timeout_s=500)
    return {name: chief for name, [chief] in found.items()}


@pytest.mark.parametrize("name", NAMES)
def test_one_worker_trains_what_one_device_trains(
    request: pytest.FixtureRequest, name: str, keras: str
) -> None:
    names = selected(request, "name", keras=keras)
    alone, served = (
        run(strategy, keras, names)["trained"].arrays[name] for strategy in ("one_device", "parameter_server")
    )
    np.testing.assert_allclose(served, alone, rtol=0, atol=2e-5)


def test_messages_do_not_grow_with_the_layers_and_steps_of_a_turn_ask_once_for_rate_and_number(
    request: pytest.FixtureRequest, keras: str
) -> None:
    chief = run("parameter_server", keras, selected(request, "name", keras=keras))
    step, turn = chief["1"].values, chief["4"].values
    assert step["2"] == step["6"]
    # Weights from each ps, gradients to each, the step's number to one ps, and the rate to the other.
    # tf_keras makes numbers on the worker, too, which TensorFlow moves.
    assert step["6"] <= {"3": 6, "legacy": 8}[keras]
    # Of 4 steps, the number and the rate once.
    assert turn["6"] == {"3": 4 * 4 + 2, "legacy": 4 * 5 + 3}[keras]
