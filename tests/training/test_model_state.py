"""What a model has besides its layers is kept, and is as on one device; or the run tells that it is not."""

from __future__ import annotations

import functools

import pytest

from tests.support.processes import Cluster, TaskProcess, run_function


@pytest.mark.slow
@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", pytest.param("legacy", marks=pytest.mark.slow)])
def test_state_that_cannot_be_saved_is_named(keras: str) -> None:
    target = "tests.support.state_functions:state_that_cannot_be_saved"
    [task] = run_function(target, Cluster(keras=keras))
    notes = "\n".join(task.values["notes"])
    for piece in ("mutable lookup table", "tf.data iterators", "optimizer for_later"):
        assert piece in notes, notes


# Where a variable of the user's own is made, what assigns to it, its options, and what it is given; and how
# many replicas of a worker it takes for the run to tell that its value is not that of one device.
FORMS = {
    "outside train_step MEAN one": 2,
    "outside train_step NONE set": None,
    "outside eager_train_step MEAN one": 2,
    "outside train_step NONE draw": 2,
    "scope train_step MEAN,ON_READ mean": None,
    "scope train_step ONLY_FIRST_REPLICA mean": 1,
    "step train_step NONE one": None,
    "step train_step MEAN mean": None,
    "step train_step NONE mean": 1,
    "scope call NONE mean": 1,
    "step call MEAN mean": None,
    "outside loss MEAN mean": 1,
    "step loss NONE one": None,
    "outside test_step NONE one": 2,
    "scope test_step NONE mean": 1,
    "outside loop MEAN mean": 1,
    "step loop NONE one": None,
}


TARGET = "tests.support.state_functions:assigned"


@functools.cache
def assigned(cluster: Cluster) -> list[TaskProcess]:
    return run_function(TARGET, cluster, forms=list(FORMS), job_options={"export": True})


@pytest.mark.slow
@pytest.mark.parametrize("num_local", [1, 2], ids=["two workers", "two devices"])
def test_variable_that_a_step_assigns_is_that_of_one_device_or_told(num_local: int, keras: str) -> None:
    [one] = assigned(Cluster(keras=keras))
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    if num_local == 1:
        cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    for task in assigned(cluster):
        for form, least in FORMS.items():
            told = task.values[f"{form} told"]
            assert bool(told) == (least is not None and num_local >= least), (form, told)
            assert told or task.values[form] == pytest.approx(one.values[form], rel=1e-5), form
            assert one.values[f"{form} told"] == []
