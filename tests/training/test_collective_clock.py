"""The time that tasks wait in collectives: who waits for whom, and that results do not depend on it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.paces import stragglers
from tests.support.processes import Cluster, TaskProcess, run_function

TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
SLOWED = "tests.support.straggler_functions:slowed"


def medians(tasks: list[TaskProcess], name: str) -> dict[str, float]:
    """Returns each task's median of a local metric, without that of the first steps."""
    return {task.name: float(np.median([one[name] for one in task.values["recorded"][1:]])) for task in tasks}


def named(tasks: list[TaskProcess]) -> dict[str, str]:
    """Returns the tasks that the controller would name, with the cause, had it had the paces one by one."""
    found = stragglers({task.name: task.values["paces"] for task in tasks})
    return {str(one.task): one.cause.value for one in found}


@pytest.mark.slow
def test_others_wait_for_the_task_whose_data_are_slow_which_is_named_with_its_cause() -> None:
    """tests/stragglers has each cause."""
    tasks = run_function(SLOWED, TWO_WORKERS, timeout_s=580, by="data", pause_s=1.0, num_steps=30)
    waits = medians(tasks, "collective_wait")
    assert waits["worker/0"] > 0.5
    assert waits["worker/1"] < 0.5 * waits["worker/0"]
    assert medians(tasks, "input_wait")["worker/1"] > 0.4
    assert named(tasks) == {"worker/1": "data"}


@pytest.mark.slow
def test_with_deterministic_operations_nothing_is_measured() -> None:
    environ = {"TF_DETERMINISTIC_OPS": "1"}
    # Slow enough that the tasks report on their way.
    tasks = run_function(
        SLOWED, TWO_WORKERS, by="compute", pause_s=0.3, num_steps=20, environ=environ, timeout_s=500
    )
    assert {"collective_wait" in one for task in tasks for one in task.values["recorded"]} == {False}


@pytest.mark.exhaustive("legacy", covered_by="[3]")
@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_results_do_not_change_by_a_bit(keras: str) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    target = "tests.support.straggler_functions:trained_with_and_without_the_clock"
    for task in run_function(target, cluster, program="ema", timeout_s=500):
        assert task.values["differ"] == []
        assert task.values["num_compared"] > 2
        assert task.values["waited_s"] > 0
        assert not task.values["still_measured"]
