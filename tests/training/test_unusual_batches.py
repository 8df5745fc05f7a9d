"""Batches that are passed by hand, whose number is unknown, or that are distributed already."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.batch_functions import SIZES
from tests.support.processes import Cluster, TaskProcess, run_in_turn

# Many short trainings on two clusters, where others may use the machine too.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FUNCTIONS = "tests.support.batch_functions"
CLUSTERS = {
    "one device": {},
    "mirrored": {"strategy": "mirrored", "devices": 2},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
}
ELSEWHERE = pytest.mark.exhaustive(covered_by="the same with 2 workers")
CALLS: dict[str, tuple[str, dict[str, object]]] = {
    "by hand": (f"{FUNCTIONS}:by_hand", {}),
    "statistics": (f"{FUNCTIONS}:by_hand_with_statistics", {}),
    "unknown": (f"{FUNCTIONS}:of_unknown_length", {"count": 76, "steps": 4}),
    "unknown, even": (f"{FUNCTIONS}:of_unknown_length", {"count": 64, "steps": 4}),
    "distributed": (f"{FUNCTIONS}:distributed", {}),
    "jit": (f"{FUNCTIONS}:compiled_by_xla", {}),
}


@functools.cache
def run(name: str, keras: str) -> dict[str, list[TaskProcess]]:
    return run_in_turn(CALLS, Cluster(**CLUSTERS[name], keras=keras), timeout_s=900)


def assert_as_on_one_device(call: str, name: str, keras: str) -> None:
    [expected] = run("one device", keras)[call]
    assert expected.arrays
    for task in run(name, keras)[call]:
        for key, array in expected.arrays.items():
            np.testing.assert_allclose(task.arrays[key], array, atol=1e-5, err_msg=f"{task.name} {key}")


@pytest.mark.parametrize(
    ("name", "keras"),
    [
        ("2 workers", "3"),
        *(
            pytest.param(*one, marks=ELSEWHERE)
            for one in (("2 workers", "legacy"), ("mirrored", "3"), ("mirrored", "legacy"))
        ),
    ],
)
class TestAsOnOneDevice:
    def test_batches_passed_by_hand(self, name: str, keras: str) -> None:
        assert_as_on_one_device("by hand", name, keras)

    def test_each_row_is_predicted_once(self, name: str, keras: str) -> None:
        for task in run(name, keras)["by hand"]:
            found = [task.arrays[f"predict-{index}"].shape for index in range(len(SIZES))]
            assert found == [(size, 3) for size in SIZES]

    def test_replicas_predict_by_hand_with_the_same_statistics(self, name: str, keras: str) -> None:
        if keras == "legacy":
            pytest.skip("there each replica reads its own statistics")
        first, *others = run(name, keras)["statistics"]
        predicted = first.arrays["predicted"]
        np.testing.assert_allclose(predicted, np.repeat(predicted[:1], 4, axis=0), atol=1e-6)
        for task in others:
            np.testing.assert_array_equal(task.arrays["predicted"], predicted)
            np.testing.assert_array_equal(task.arrays["tested"], first.arrays["tested"])

    @pytest.mark.parametrize(("call", "steps"), [("unknown", 30), ("unknown, even", 24)])
    def test_several_steps_in_a_call_of_data_of_unknown_length(
        self, name: str, keras: str, call: str, steps: int
    ) -> None:
        assert_as_on_one_device(call, name, keras)
        assert [task.values["steps"] for task in run(name, keras)[call]] == [steps] * len(
            run(name, keras)[call]
        )
        assert run("one device", keras)[call][0].values["steps"] == steps

    def test_distributed_data_without_a_number_of_steps(self, name: str, keras: str) -> None:
        assert_as_on_one_device("distributed", name, keras)
        assert {task.values["steps"] for task in run(name, keras)["distributed"]} == {8}

    def test_jit_compile_gives_the_same_and_is_noted_where_it_is_not_done(
        self, name: str, keras: str
    ) -> None:
        assert_as_on_one_device("jit", name, keras)
        for task in run(name, keras)["jit"]:
            assert [
                note for note in task.values["notes"] if "jit_compile=True, and its steps run without" in note
            ]
            assert not task.values["known is compiled"]
            assert not task.values["generated is compiled"]


def test_jit_compile_compiles_on_one_device_however_the_data_come(keras: str) -> None:
    [task] = run("one device", keras)["jit"]
    assert task.values["known is compiled"]
    assert task.values["generated is compiled"]
    assert not [note for note in task.values["notes"] if "jit_compile" in note]
