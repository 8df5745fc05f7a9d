"""Rehearsals of steps: what they find of each kind of batches, of sums, and where there can be none."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_in_turn

pytestmark = pytest.mark.slow

NAMES = ("errors", "of_a_step_that_callbacks_change", "notes_on_draws_and_metrics", "steps_that_fail")
# tf_keras cannot make a variable in a step of several devices.
OF_KERAS = {"3": "made_in_a_step_that_cannot_be_rehearsed", "legacy": "evaluated_sums"}


@functools.cache
def run(keras: str) -> dict[str, TaskProcess]:
    calls = {name: (f"tests.support.rehearsal_functions:{name}", {}) for name in (*NAMES, OF_KERAS[keras])}
    found = run_in_turn(calls, Cluster(strategy="mirrored", devices=2, keras=keras))
    return {name: task for name, [task] in found.items()}


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_mean_loss_is_found_whatever_holds_the_rows(keras: str) -> None:
    values = run(keras)["errors"].values
    assert len(values) == 6
    for batch, (scaled, local_mean, summed) in values.items():
        assert local_mean < 1e-5 < 0.5 < min(scaled, summed), batch


def test_a_sum_that_tf_keras_multiplies_by_the_replicas_is_shown_as_on_one_device() -> None:
    values = run("legacy")["evaluated_sums"].values
    assert values["found"] == pytest.approx(values["right"], rel=1e-5)


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_step_is_looked_at_as_callbacks_have_it_run(keras: str) -> None:
    arrays = run(keras)["of_a_step_that_callbacks_change"].arrays
    np.testing.assert_allclose(arrays["found"], arrays["right"], rtol=1e-5)


def test_a_step_that_cannot_be_rehearsed_makes_its_variables_in_the_first_step() -> None:
    arrays = run("3")["made_in_a_step_that_cannot_be_rehearsed"].arrays
    np.testing.assert_allclose(arrays["found"], arrays["right"], rtol=1e-5)


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_draws_in_conditions_and_metrics_that_the_first_step_makes_are_noted(keras: str) -> None:
    values = run(keras)["notes_on_draws_and_metrics"].values
    assert set(values) == {"InCondition", "InLoop"}
    for layer, notes in values.items():
        assert any(f"layers {layer} draw random numbers" in one for one in notes)
        assert any("metric largest from" in one for one in notes)


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_nothing_is_noted_of_a_step_that_raises(keras: str) -> None:
    values = run(keras)["steps_that_fail"].values
    assert set(values) == {"fit", "model.fit", "evaluate", "train_steps"}
    for call, found in values.items():
        assert "no such feature" in found["error"], call
        assert found["notes"] == [], call


CLUSTERS = {
    "one device": Cluster(),
    "2 devices": Cluster(strategy="mirrored", devices=2),
    "5 devices": Cluster(strategy="mirrored", devices=5),  # which cannot have as many rows of 12
    "2 workers": Cluster(strategy="multi_worker_mirrored", workers=2),
}


@functools.cache
def _sizes(cluster: str, keras: str) -> TaskProcess:
    calls: dict[str, tuple[str, dict[str, object]]] = {
        "sizes": ("tests.support.rehearsal_functions:sizes_from_shapes", {})
    }
    return run_in_turn(calls, dataclasses.replace(CLUSTERS[cluster], keras=keras))["sizes"][0]


ALIKE = pytest.mark.exhaustive(covered_by="the same on devices of one worker")
READS = "reads how many rows a batch has from a shape"


@pytest.mark.parametrize(
    ("cluster", "keras"),
    [
        *(("2 devices", "3"), ("5 devices", "3"), ("2 devices", "legacy")),
        *(pytest.param("2 workers", keras, marks=ALIKE) for keras in ("3", "legacy")),
    ],
)
def test_rows_that_a_loss_reads_from_a_shape_are_those_of_training(cluster: str, keras: str) -> None:
    device, replicas = _sizes("one device", keras), _sizes(cluster, keras)
    assert len(replicas.arrays) == (18 if cluster == "5 devices" else 21)
    for case, found in replicas.arrays.items():
        right, notes = device.arrays[case], replicas.values["notes"][case]
        np.testing.assert_allclose(found[:4], right[:4], rtol=1e-4, atol=1e-5, err_msg=case)  # weights
        is_shown = np.allclose(found, right, rtol=1e-4)
        assert is_shown or any("what is shown of it may differ" in one for one in notes), (case, found, right)
        needs_rows = case.startswith(("or", "unpacked"))
        knows_rows = case.endswith(", known") and cluster != "5 devices"
        is_told = any(READS in one for one in notes)
        assert is_told == (case.startswith("needed") or (needs_rows and not knows_rows)), (case, notes)
