"""Keras's keywords of `fit`, and `ctx.evaluate` and `ctx.predict`, mean the same under every strategy."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

FUNCTIONS = "tests.support.fit_functions"
Calls = dict[str, tuple[str, dict[str, Any]]]
CALLS: Calls = {
    "weighted function": (f"{FUNCTIONS}:weighted_classes", {"way": "function"}),
    "weighted batches": (f"{FUNCTIONS}:weighted_classes", {"way": "batches"}),
    "later epochs": (f"{FUNCTIONS}:later_epochs", {"way": "batches"}),
    "evaluated": (f"{FUNCTIONS}:evaluated", {"way": "function"}),
    "validated": (f"{FUNCTIONS}:validated_beyond_the_end", {"way": "batches"}),
    "of python": (f"{FUNCTIONS}:evaluated_of_python", {}),
    "predicted": (f"{FUNCTIONS}:predicted", {}),
    "classes": (f"{FUNCTIONS}:metric_of_classes", {}),
}
ON_DEVICES: Calls = {"components": (f"{FUNCTIONS}:components_of_other_sizes", {})}
ON_WORKERS: Calls = {
    "divided": (f"{FUNCTIONS}:divided_classes", {}),
    "in any order": (f"{FUNCTIONS}:without_a_fixed_order", {"is_fixed": False}),
    "predicted": CALLS["predicted"],
}
OF_KERAS_3: Calls = {
    "trained": (f"{FUNCTIONS}:classes_left_out", {}),
    "labels": (f"{FUNCTIONS}:weights_of_labels", {}),
}
ON_ONE_DEVICE: Calls = {
    "weighted by Keras": (f"{FUNCTIONS}:weighted_by_keras", {}),
    "evaluated arrays": (f"{FUNCTIONS}:evaluated", {"way": "arrays"}),
    "validated arrays": (f"{FUNCTIONS}:validated_beyond_the_end", {"way": "arrays"}),
    "divided": ON_WORKERS["divided"],
    "in order": (f"{FUNCTIONS}:without_a_fixed_order", {"is_fixed": True}),
}
REQUESTS = {"fit": "FitRequest", "train_steps": "LoopRequest"}
DEVICES = Cluster(strategy="mirrored", devices=2)
WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2, devices=2)
ELSEWHERE = pytest.mark.exhaustive(covered_by="the same on 2 devices")
CLUSTERS = [
    DEVICES,
    *(
        pytest.param(one, marks=ELSEWHERE)
        for one in (
            Cluster(strategy="parameter_server", workers=1, ps=1),
            Cluster(strategy="multi_worker_mirrored", workers=2),
            Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy"),
            Cluster(strategy="parameter_server", workers=1, ps=1, keras="legacy"),
        )
    ),
]


@pytest.mark.parametrize("method", REQUESTS)
def test_arguments_and_defaults_are_those_of_the_train_context(method: str) -> None:
    from raydist.train_context import TrainContext
    from raydist.training.trainers import base

    _, *declared = inspect.signature(getattr(TrainContext, method)).parameters.values()
    taken = inspect.signature(getattr(base, REQUESTS[method])).parameters
    assert {one.name: one.default for one in declared} == {one.name: one.default for one in taken.values()}


def test_argument_that_fit_does_not_take_is_named() -> None:
    from raydist.training.context import _bound

    with pytest.raises(TypeError, match=r"^ctx\.fit\(\) has no argument 'epoch'; did you mean epochs\?"):
        _bound("fit", None, None, epoch=3)
    assert _bound("fit", 1, 2, epochs=3) == {"model": 1, "train_data": 2, "epochs": 3}


@functools.cache
def run(cluster: Cluster) -> dict[str, list[TaskProcess]]:
    calls = {Cluster(): ON_ONE_DEVICE | CALLS, WORKERS: ON_WORKERS, DEVICES: CALLS | ON_DEVICES}
    own = OF_KERAS_3 if cluster == Cluster() else {}
    return run_in_turn(own | calls.get(replace(cluster, keras="3"), CALLS), cluster)


def both(name: str, cluster: Cluster) -> tuple[TaskProcess, list[TaskProcess]]:
    """Returns what one device finds, and each task of the cluster that ends by itself."""
    [expected] = run(Cluster(keras=cluster.keras))[name]
    return expected, run(cluster)[name]


@pytest.mark.slow
@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
class TestAsOnOneDevice:
    @pytest.mark.parametrize("way", ["function", "batches"])
    def test_classes_are_weighted(self, cluster: Cluster, way: str) -> None:
        expected, tasks = both(f"weighted {way}", cluster)
        for task in tasks:
            np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5)

    def test_epochs_and_validations_are_counted_as_keras_counts_them(self, cluster: Cluster) -> None:
        expected, tasks = both("later epochs", cluster)
        assert tasks[0].values["seen"] == [2, 3, 4, 5]  # by a nested callback that the chief alone runs
        for task in tasks:
            assert task.values["epochs"] == [2, 3, 4, 5]
            assert len(task.arrays["validations"]) == 2
            np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5)

    def test_evaluation_counts_each_example_once(self, cluster: Cluster) -> None:
        expected, tasks = both("evaluated", cluster)
        assert expected.values["whole"] != expected.values["part"]
        for task in tasks:
            for name in ("whole", "part"):
                assert task.values[name] == pytest.approx(expected.values[name], abs=1e-5)

    def test_labels_and_sizes_are_taken_beside_arrays_alone(self, cluster: Cluster) -> None:
        expected, tasks = both("evaluated", cluster)
        for task in tasks:
            assert task.values["labels beside"] == pytest.approx(expected.values["by_keras"], abs=1e-5)
            np.testing.assert_allclose(
                task.arrays["predicted in fives"], task.arrays["predicted"], rtol=1e-5, atol=1e-6
            )
            labels, size, empty = task.values["refused"]
            assert "ctx.evaluate got y, batch_size beside data of " in labels
            assert "ctx.predict got batch_size beside data of " in size
            assert "batch_size is 0; give at least 1" in empty

    def test_evaluation_of_more_steps_than_there_are_is_that_of_keras(self, cluster: Cluster) -> None:
        expected, tasks = both("evaluated", cluster)
        for task in tasks:
            assert task.values["beyond"] == pytest.approx(expected.values["by_keras"], abs=1e-5)

    def test_validation_of_more_steps_than_there_are_counts_each_example_once(self, cluster: Cluster) -> None:
        _, tasks = both("validated", cluster)
        for task in tasks:
            assert task.values["validated"] == pytest.approx(task.values["whole"], abs=1e-5)
            [note] = [note for note in task.values["notes"] if note.startswith("validation_steps is")]
            assert note.endswith(
                "is 9, and validation_data has 4 batches of 16: 4 steps evaluate each example once"
            )

    def test_evaluation_takes_what_yields_batches_in_python(self, cluster: Cluster) -> None:
        [expected], tasks = run(Cluster(keras=cluster.keras))["of python"], run(cluster)["of python"]
        for values in (task.values for task in tasks):
            if cluster.strategy == "parameter_server":
                assert values["py dataset"].startswith("UnsupportedError: data of ctx.evaluate is Batches;")
                continue
            for name in ("whole", "part"):
                same = "" if name == "whole" else ", part"
                for way in ("py dataset", "generator"):
                    assert values[f"{way}{same}"] == pytest.approx(expected.values[name], abs=1e-5)
            assert values["padded"] == pytest.approx(values["padded py dataset"], abs=1e-5)
            assert values["padded"] == pytest.approx(expected.values["padded"], abs=1e-5)
            assert values["number"].startswith("UnsupportedError: data of ctx.evaluate is int; give")
            assert values["empty"].startswith("UnsupportedError: data of ctx.evaluate is a generator that")

    def test_metric_of_several_values_is_returned_and_reported_by_element(self, cluster: Cluster) -> None:
        expected, tasks = both("classes", cluster)
        assert expected.arrays["evaluated"].shape == (3,)
        for task in tasks:
            for name in ("evaluated", "by_keras"):
                np.testing.assert_allclose(task.arrays[name], expected.arrays["evaluated"], atol=1e-5)
            # The last validation is of the final weights.
            np.testing.assert_allclose(task.arrays["validated"][-1], task.arrays["evaluated"], atol=1e-5)
            reported = [task.values["reported"][f"val_f1_score/{number}"] for number in range(3)]
            np.testing.assert_allclose(reported, task.arrays["evaluated"], atol=1e-5)
            assert "f1_score/2" in task.values["reported"]
            matrix = {"matrix/0/0": 0.0, "matrix/0/1": 1.0, "matrix/1/0": 2.0, "matrix/1/1": 3.0}
            assert task.values["matrix"] == matrix
            [note] = [note for note in task.values["notes"] if note.startswith("large has 101 values")]
            assert note.endswith("take those of at most 100, and leave it out")

    def test_prediction_has_each_row_once_and_in_order(self, cluster: Cluster) -> None:
        expected, tasks = both("predicted", cluster)
        assert expected.arrays["outputs"].shape == (50, 3)
        for task in tasks:
            np.testing.assert_allclose(task.arrays["outputs"], expected.arrays["outputs"], atol=1e-5)

    @pytest.mark.parametrize(
        ("mistake", "sentence"),
        [
            ("no rows", "the arrays have no rows; give"),
            ("no batches", "data of ctx.predict has no batches; give"),
            ("context", "data of ctx.predict is divided among the workers before"),
            ("number", "data of ctx.predict is int; give"),
        ],
    )
    def test_data_that_cannot_be_predicted_are_refused(
        self, cluster: Cluster, mistake: str, sentence: str
    ) -> None:
        for task in run(cluster)["predicted"]:
            assert task.values[mistake].startswith(f"UnsupportedError: {sentence}")

    def test_keras_itself_refuses_batches_with_what_to_do_instead(self, cluster: Cluster) -> None:
        sentence = (
            "UnsupportedError: Keras's own fit, evaluate and predict do not take batches of raydist.data"
        )
        for values in (task.values for task in run(cluster)["predicted"]):
            if cluster.strategy == "parameter_server":
                continue
            assert values["model.fit"].startswith(sentence)
            if cluster.keras == "3":
                assert values["model.evaluate"].startswith(sentence)
                assert values["model.predict"].startswith(sentence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_workers", "alone"),
    [("divided", "divided"), ("in any order", "in order"), ("predicted", "predicted")],
)
def test_workers_of_2_devices_find_what_one_device_finds(on_workers: str, alone: str, keras: str) -> None:
    [expected] = run(Cluster(keras=keras))[alone]
    for task in run(replace(WORKERS, keras=keras))[on_workers]:
        assert task.arrays.keys() == expected.arrays.keys() != set()
        for name, array in expected.arrays.items():
            np.testing.assert_allclose(task.arrays[name], array, atol=1e-5, err_msg=name)
        assert not any("each worker maps all examples" in note for note in task.values.get("notes", ()))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["function", "batches"])
def test_weights_are_those_of_kerass_own_class_weight(way: str, keras: str) -> None:
    """The function is weighted by raydist, the dataset of one device by Keras's documentation."""
    found = run(Cluster(keras=keras))
    [weighted], [plain] = found[f"weighted {way}"], found["weighted by Keras"]
    np.testing.assert_allclose(weighted.arrays["weights"], plain.arrays["weights"], atol=1e-6)


@pytest.mark.slow
def test_steps_beyond_the_end_of_arrays_evaluate_each_example_once() -> None:
    evaluated, validated = (run(Cluster())[f"{name} arrays"][0].values for name in ("evaluated", "validated"))
    assert evaluated["beyond"] == pytest.approx(evaluated["by_keras"], abs=1e-6)  # of 2 batches of 32
    assert validated["validated"] == pytest.approx(validated["whole"], abs=1e-6)
    notes = [note for note in validated["notes"] if note.startswith("validation_steps is 9")]
    assert len(notes) == 1


@pytest.mark.slow
def test_class_without_a_weight_weighs_1_as_in_keras_3() -> None:
    [trained], [labels] = run(Cluster())["trained"], run(Cluster())["labels"]
    for name in ("first", "one"):
        expected = trained.arrays[f"{name} by Keras"]
        for way in ("dataset", "batches"):
            np.testing.assert_allclose(trained.arrays[f"{name} of {way}"], expected, atol=1e-6)
    assert len(labels.arrays) == 48
    for key, weights in labels.arrays.items():
        if key.endswith(" found"):
            expected = labels.arrays[key.replace(" found", " expected")]
            assert weights.dtype == expected.dtype
            np.testing.assert_array_equal(weights, expected, err_msg=key)


@pytest.mark.exhaustive("legacy-ctx.fit", "3-ctx.callbacks", covered_by="[3-ctx.fit]; [legacy-ctx.callbacks]")
@pytest.mark.slow
@pytest.mark.parametrize("call", ["ctx.fit", "ctx.callbacks"])
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_fit_from_a_later_epoch_on_takes_the_examples_that_keras_takes(
    keras: str, call: str, tmp_path: Path
) -> None:
    target, where = f"{FUNCTIONS}:later_epochs", replace(DEVICES, keras=keras)
    [expected] = run_function(target, where, way="shuffled", call="model.fit")
    given: dict[str, Any] = {"way": "shuffled", "call": call, "storage": tmp_path}
    run_function(target, where, epochs=4, **given)
    [resumed] = run_function(target, where, attempt=1, **given)
    assert (resumed.values["step"], resumed.values["epochs"]) == (16, [2, 3, 4, 5])
    assert resumed.values["steps_of_another"] == (4 if call == "ctx.callbacks" else 0)
    np.testing.assert_allclose(resumed.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.slow
def test_batch_whose_components_have_other_numbers_of_rows_is_refused() -> None:
    [task] = run(DEVICES)["components"]
    for sizes in ("known", "unknown"):
        refusal = "UnsupportedError: the components of a batch have different numbers"
        assert task.values[sizes].startswith(refusal)
