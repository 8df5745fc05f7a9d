"""Rehearsals of steps: what they find of each kind of batches, of sums, and where there can be none."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function


@pytest.mark.slow
@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_mean_loss_is_found_whatever_holds_the_rows(keras: str) -> None:
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    [task] = run_function("tests.support.rehearsal_functions:errors", cluster)
    assert len(task.values) == 6
    for batch, (scaled, local_mean, summed) in task.values.items():
        assert local_mean < 1e-5 < 0.5 < min(scaled, summed), batch


@pytest.mark.slow
def test_a_sum_that_tf_keras_multiplies_by_the_replicas_is_shown_as_on_one_device() -> None:
    cluster = Cluster(strategy="mirrored", devices=2, keras="legacy")
    [task] = run_function("tests.support.rehearsal_functions:evaluated_sums", cluster)
    assert task.values["found"] == pytest.approx(task.values["right"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_step_is_looked_at_as_callbacks_have_it_run(keras: str) -> None:
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    [task] = run_function("tests.support.rehearsal_functions:of_a_step_that_callbacks_change", cluster)
    np.testing.assert_allclose(task.arrays["found"], task.arrays["right"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_draws_in_conditions_and_metrics_that_the_first_step_makes_are_noted(keras: str) -> None:
    cluster = Cluster(strategy="mirrored", devices=2, keras=keras)
    [task] = run_function("tests.support.rehearsal_functions:notes_on_draws_and_metrics", cluster)
    assert set(task.values) == {"InCondition", "InLoop"}
    for layer, notes in task.values.items():
        assert any(f"layers {layer} draw random numbers" in one for one in notes)
        assert any("metric largest from" in one for one in notes)


@pytest.mark.slow
@pytest.mark.exhaustive("legacy", covered_by="the same with Keras 3")
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_a_step_that_cannot_be_rehearsed_makes_its_variables_in_the_first_step(keras: str) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    target = "tests.support.rehearsal_functions:made_in_a_step_that_cannot_be_rehearsed"
    for task in run_function(target, cluster):
        np.testing.assert_allclose(task.arrays["found"], task.arrays["right"], rtol=1e-5)
