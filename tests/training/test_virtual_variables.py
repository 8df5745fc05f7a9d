"""What each virtual replica has for itself, and what a worker has once for all of its replicas."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.virtual_variable_functions"
CALLS = ("optimizers", "assigned", "late_seeds", "distributed", "noted")


@functools.cache
def run() -> dict[str, TaskProcess]:
    calls = {name: (f"{FUNCTIONS}:{name}", {}) for name in CALLS}
    found = run_in_turn(calls, Cluster(), job_options={"virtual_replicas": 4})
    return {name: task for name, [task] in found.items()}


@pytest.mark.exhaustive("legacy", "tf_keras", covered_by="the same with Keras 3")
@pytest.mark.parametrize("maker", ["keras", "own", "tf_keras", "legacy"])
def test_optimizers_update_their_variables_once_for_all_replicas(maker: str) -> None:
    found = {name: value for name, value in run()["optimizers"].arrays.items() if name.startswith(maker)}
    assert len(found) > 1
    for name, copies in found.items():
        assert len({copy.tobytes() for copy in copies}) == 1, (name, copies)
    # The replicas' losses are a quarter each. All of these keep momentum so that weights move alike.
    weight, momentum = 1.0, 0.0
    for _ in range(3):
        momentum = 0.9 * momentum + 2 * weight
        weight -= 0.1 * momentum
    np.testing.assert_allclose(found[f"{maker}/weight"][0], [weight], rtol=1e-5)


def test_weight_is_assigned_once_and_a_queue_by_each_replica() -> None:
    found = run()["assigned"].arrays
    assert found["target"].tolist() == [[2.0]] * 4
    assert found["queue"].tolist() == [[0.0], [2.0], [4.0], [6.0]]
    assert found["whole"].tolist() == [3.0]


def test_layer_made_late_has_a_seed_for_each_replica_also_after_a_run_with_fewer() -> None:
    task = run()["late_seeds"]
    seeds = task.arrays["begun"][:, 0].tolist()
    assert seeds[0] == 3
    assert len(set(seeds)) == 4
    assert task.arrays["restored"][:, 0].tolist() == seeds
    assert task.values["notes"]["same"] is None
    assert task.values["notes"]["fewer"] == (
        "the checkpoint is of a run with 2 in place of 4 virtual replicas, so the results are those of "
        "neither number"
    )


def test_tensorflows_own_distribution_gives_replicas_successive_rows() -> None:
    found = {int(name): value.tolist() for name, value in run()["distributed"].arrays.items()}
    assert found == {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7], 3: [8, 9]}


def test_what_makes_results_depend_on_the_number_of_workers_is_noted() -> None:
    found = run()["noted"].values
    assert [name for name, notes in found.items() if not notes] == ["inside", "generator"]
    [draw], [outside] = found["uniform"], found["outside"]
    assert "a function that XLA compiles (jit_compile=True)" in found["compiled"][0]
    assert "leave set_jit and --tf_xla_auto_jit out" in found["clustered"][0]
    assert "TensorFlow's RandomUniform, whose seed depends on how many replicas a worker computes" in draw
    assert outside == (
        "a step changes outside, made outside of the strategy's scope, in each replica of a worker in turn, "
        "so results depend on how many a worker computes; make it in the scope"
    )
