"""What users' own fit, evaluate and predict give under each strategy, and that the mends are still needed."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function

FUNCTIONS = "tests.support.train_functions"
TWO_REPLICAS = {
    "mirrored": {"strategy": "mirrored", "devices": 2},
    "central storage": {"strategy": "central_storage", "devices": 2},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
}


@functools.cache
def users_own_fit(keras: str, name: str) -> list[TaskProcess]:
    return run_function(f"{FUNCTIONS}:users_own_fit", Cluster(**TWO_REPLICAS[name], keras=keras))


@functools.cache
def on_one_device(keras: str) -> TaskProcess:
    return run_function(f"{FUNCTIONS}:users_own_fit", Cluster(keras=keras))[0]


@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("name", TWO_REPLICAS)
class TestUsersOwnFit:
    def test_an_empty_local_batch_leaves_no_nan(self, name: str, keras: str) -> None:
        for task in users_own_fit(keras, name):
            assert [key for key, array in task.arrays.items() if not np.isfinite(array).all()] == []

    def test_all_workers_hold_the_same_weights_and_statistics(self, name: str, keras: str) -> None:
        first, *others = users_own_fit(keras, name)
        for task in others:
            for key, array in first.arrays.items():
                np.testing.assert_array_equal(task.arrays[key], array, err_msg=key)

    def test_several_steps_per_execution_change_nothing(self, name: str, keras: str) -> None:
        arrays = users_own_fit(keras, name)[0].arrays
        for key in ("loss", "accuracy", "val_loss", "weights", "statistics", "predict"):
            np.testing.assert_allclose(arrays[f"{key}-4"], arrays[f"{key}-1"], atol=1e-6, err_msg=key)

    def test_predictions_keep_the_order_of_the_data(self, name: str, keras: str) -> None:
        predicted = users_own_fit(keras, name)[0].arrays["predict-of-arrays"]
        np.testing.assert_allclose(predicted, on_one_device(keras).arrays["predict-of-arrays"], atol=1e-5)

    def test_arrays_shuffled_by_keras_are_the_same_on_every_worker(self, name: str, keras: str) -> None:
        if (name, keras) == ("central storage", "legacy"):
            pytest.skip("there the replicas share a metric's variables, so a stand-in counts as one example")
        loss = users_own_fit(keras, name)[0].arrays["loss-of-arrays"]
        np.testing.assert_allclose(loss, on_one_device(keras).arrays["loss-of-arrays"], atol=1e-5)


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_batch_logs_are_means_not_sums_over_replicas(keras: str) -> None:
    [one] = run_function(f"{FUNCTIONS}:batch_logs", Cluster(keras=keras))
    tasks = run_function(
        f"{FUNCTIONS}:batch_logs", Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    )
    # Each worker's log is that of its own half of the examples: near the whole, never twice as much.
    for task in tasks:
        assert task.values["batch"] == pytest.approx(one.values["epoch"], rel=0.25)
        assert task.values["epoch"] == pytest.approx(one.values["epoch"], abs=1e-5)
    mean = sum(task.values["batch"] for task in tasks) / 2
    assert mean == pytest.approx(one.values["batch"], abs=1e-5)


@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_callback_that_only_the_chief_has_sees_each_batch_and_blocks_nobody(keras: str) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)
    first, second = run_function(f"{FUNCTIONS}:callback_of_the_chief_alone", cluster, timeout_s=90)
    assert (first.values["seen"], second.values["seen"]) == (320, 0)
    np.testing.assert_array_equal(first.arrays["weights"], second.arrays["weights"])


@pytest.mark.parametrize("clip", ["clipnorm", "clipvalue", "global_clipnorm"])
def test_gradients_are_clipped_after_they_are_summed(clip: str) -> None:
    [one] = run_function(f"{FUNCTIONS}:clipped", Cluster(), clip=clip)
    [two] = run_function(f"{FUNCTIONS}:clipped", Cluster(strategy="mirrored", devices=2), clip=clip)
    np.testing.assert_allclose(two.arrays["weights"], one.arrays["weights"], atol=1e-5)


@pytest.mark.parametrize("option", ["gradient_accumulation_steps", "ema_overwrite_frequency"])
def test_what_cannot_work_is_refused_before_training(option: str) -> None:
    [task] = run_function(f"{FUNCTIONS}:refused", Cluster(strategy="mirrored", devices=2), option=option)
    assert task.values["error"].startswith("UnsupportedError: optimizer")
    assert option in task.values["error"]


@pytest.mark.parametrize(
    ("cluster", "steps", "error"),
    [
        (Cluster(strategy="mirrored", devices=2), 4, "You must feed a value for placeholder"),
        (Cluster(strategy="multi_worker_mirrored", workers=2), 1, "PerReplica"),
    ],
    ids=["several steps under mirrored", "fit on 2 workers"],
)
def test_stock_keras_3_still_fails(cluster: Cluster, steps: int, error: str) -> None:
    """Fails when Keras has mended itself: then raydist's mend can go."""
    tasks = run_function(f"{FUNCTIONS}:error_of_fit", cluster, steps=steps, job_options={"mend_keras": False})
    for task in tasks:
        assert error in task.values["error"]


def test_stock_tf_keras_still_doubles_batch_logs() -> None:
    """Fails when tf_keras has mended itself."""
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy")
    first, second = run_function(f"{FUNCTIONS}:batch_logs", cluster, job_options={"mend_keras": False})
    assert first.values["batch"] == pytest.approx(2 * first.values["epoch"], rel=0.01)
    assert second.values["batch"] == pytest.approx(first.values["batch"], rel=1e-6)


@pytest.mark.parametrize("module", ["keras3", "legacy_keras"])
def test_every_replaced_function_is_the_one_it_was_written_for(module: str) -> None:
    [task] = run_function(
        f"{FUNCTIONS}:changed_sources", Cluster(), module=module, job_options={"mend_keras": False}
    )
    assert task.values["changed"] == []
    assert task.values["count"] >= 7


def test_a_changed_source_is_refused_with_the_remedy() -> None:
    [task] = run_function(f"{FUNCTIONS}:mend_of_changed_source", Cluster(), job_options={"mend_keras": False})
    assert "TensorFlowTrainer.fit" in task.values["error"]
    assert "--no-mend-keras" in task.values["error"]
