"""A tf.function inside of a training step does in each context what the code in it says."""

from __future__ import annotations

import functools

import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.decorator_functions"


def test_a_decorated_loss_of_an_eager_replica_is_not_what_it_was_outside(keras: str) -> None:
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    [task] = run_function(f"{FUNCTIONS}:eager_replicas", cluster)
    assert task.values["outside"][1] == 0
    assert [number for _, number in task.values["bare"]] == [0, 1]
    assert task.values["decorated"] == task.values["bare"]


@functools.cache
def run_net(keras: str) -> dict[str, list[TaskProcess]]:
    names = ("steps_that_change_nothing_at_first", "kept_graph")
    return run_in_turn({name: (f"{FUNCTIONS}:{name}", {}) for name in names}, Cluster(keras=keras))


def test_a_step_that_runs_a_graph_from_before_the_training_ends_with_an_error(keras: str) -> None:
    [task] = run_net(keras)["kept_graph"]
    raised = task.values["raised"]
    assert raised.startswith("UnsupportedError: kept_graph.<locals>.Model.train_step (")
    assert "changed neither weights nor the optimizer's variables" in raised


def test_steps_that_may_change_nothing_end_with_no_error(keras: str) -> None:
    [task] = run_net(keras)["steps_that_change_nothing_at_first"]
    assert [*task.values.values()] == [""] * 5
