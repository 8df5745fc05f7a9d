"""What raydist does besides training changes no generator, variable or Python object of the user's."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.processes import Cluster, run_in_turn

pytestmark = pytest.mark.slow

FUNCTIONS = "tests.support.generator_functions"


def test_a_program_that_shuffles_before_each_fit_has_plain_keras_s_numbers_in_each_worker(keras: str) -> None:
    calls = {kind: (f"{FUNCTIONS}:shuffles_between_fits", {"kind": kind}) for kind in ("arrays", "dataset")}
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    for kind, tasks in run_in_turn(calls, cluster).items():
        for task in tasks:
            for name in ("orders", "second model"):
                plain, found = (task.arrays[f"{way} {name}"] for way in ("plain", "ctx"))
                np.testing.assert_array_equal(found, plain, err_msg=f"{task.name} {kind} {name}")


def test_rehearsals_of_tf_keras_change_no_variable_and_nothing_in_python() -> None:
    _check_rehearsals("legacy")


def test_rehearsals_of_keras_3_change_no_variable_and_nothing_in_python() -> None:
    _check_rehearsals("3")


def _check_rehearsals(keras: str) -> None:
    names = ("counting_layers", "draws_while_traced", "undone_in_python")
    calls = {name: (f"{FUNCTIONS}:{name}", {}) for name in names}
    found = {
        name: task
        for name, [task] in run_in_turn(calls, Cluster(strategy="mirrored", devices=2, keras=keras)).items()
    }
    counted = found["counting_layers"].arrays
    for name, values in counted.items():
        kind = name.partition(" by ")[0]
        np.testing.assert_allclose(values, counted[f"{kind} by plain"], rtol=1e-5, err_msg=name)
    drawn = found["draws_while_traced"].arrays
    np.testing.assert_array_equal(drawn["checks=True"], drawn["checks=False"])
    values = found["undone_in_python"].values
    assert values["undone"] == [1, "before", 0.0, [1], {"a": 1}, None, 1]
    assert values["kept"] == [True, 1, 1]
    assert values["moved by building"]
