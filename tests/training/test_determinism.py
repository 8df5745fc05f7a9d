"""Deterministic operations: who asks for them gets the same weights, to the bit, in every run."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

pytestmark = pytest.mark.slow

TRAINED = "tests.support.determinism_functions:trained"
CLUSTERS = {
    "one device": {},
    "mirrored": {"strategy": "mirrored", "devices": 2},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
}


@pytest.mark.exhaustive("2 workers", "legacy", "mirrored", covered_by="[one device-3]")
@pytest.mark.parametrize(
    ("name", "keras"),
    [
        ("one device", "3"),
        ("2 workers", "3"),
        ("2 workers", "legacy"),
        # The same again in another way.
        *(
            (name, keras)
            for name, keras in [("one device", "legacy"), ("mirrored", "3"), ("mirrored", "legacy")]
        ),
    ],
)
def test_two_runs_with_deterministic_operations_give_the_same_weights(name: str, keras: str) -> None:
    cluster = Cluster(**CLUSTERS[name], keras=keras)
    by_call: list[TaskProcess] = run_function(TRAINED, cluster, asks=True)
    by_environment = run_function(TRAINED, cluster, environ={"TF_DETERMINISTIC_OPS": "1"}, asks=False)
    for task in (*by_call, *by_environment):
        assert sorted(task.arrays) == ["ctx.fit-1", "ctx.fit-4", "fit-1", "fit-4", "train_steps"]
        for way, weights in task.arrays.items():
            np.testing.assert_array_equal(weights, by_call[0].arrays[way], err_msg=way)


def test_deterministic_operations_that_are_asked_for_between_two_fits_do_not_end_the_run() -> None:
    target = "tests.support.determinism_functions:asked_between"
    [expected] = run_function(target, Cluster())
    assert expected.values["refused"]  # or TensorFlow's timestamp needs no care any more
    for task in run_function(target, Cluster(**CLUSTERS["2 workers"])):
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-6)
        assert task.values["waited"] is None  # not measured any more


def test_layers_of_tf_keras_that_draw_take_no_seeds_of_weights_and_have_different_ones() -> None:
    [task] = run_function("tests.support.determinism_functions:seeds_beside", Cluster(keras="legacy"))
    first, second = task.arrays["masks"]
    assert (first != second).any()
    np.testing.assert_array_equal(task.arrays["kernel"], task.arrays["alone"])
