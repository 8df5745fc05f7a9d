"""What users' own fit, evaluate and predict give under each strategy, and that each patch is still needed."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

FUNCTIONS = "tests.support.train_functions"
CLUSTERS = {
    "one device": {},
    "mirrored": {"strategy": "mirrored", "devices": 2},
    "central storage": {"strategy": "central_storage", "devices": 2},
    "2 workers": {"strategy": "multi_worker_mirrored", "workers": 2},
}
CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")
REFUSED = ("gradient_accumulation_steps", "ema_overwrite_frequency", "stateful")


def calls_on(name: str, keras: str) -> dict[str, tuple[str, dict[str, object]]]:
    """Returns what the tests of this module want of one cluster, which then is started once."""
    calls: dict[str, tuple[str, dict[str, object]]] = {
        "own fit": (f"{FUNCTIONS}:users_own_fit", {}),
        "batch logs": (f"{FUNCTIONS}:batch_logs", {}),
    }
    if name == "2 workers":
        calls["eager logs"] = (f"{FUNCTIONS}:logs_of_eager_steps", {})
        calls["callback of the chief"] = (f"{FUNCTIONS}:callback_of_the_chief_alone", {})
    if name in ("one device", "mirrored") and keras == "3":
        calls |= {clip: (f"{FUNCTIONS}:clipped", {"clip": clip}) for clip in CLIPS}
    if name == "mirrored" and keras == "3":
        calls |= {option: (f"{FUNCTIONS}:refused", {"option": option}) for option in REFUSED}
    return calls


@functools.cache
def run(name: str, keras: str) -> dict[str, list[TaskProcess]]:
    return run_in_turn(calls_on(name, keras), Cluster(**CLUSTERS[name], keras=keras))


def users_own_fit(keras: str, name: str) -> list[TaskProcess]:
    return run(name, keras)["own fit"]


def on_one_device(keras: str, call: str = "own fit") -> TaskProcess:
    return run("one device", keras)[call][0]


@pytest.mark.parametrize(
    ("name", "keras"),
    [
        ("2 workers", "3"),
        ("mirrored", "3"),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive(covered_by="the same on 2 devices"))
            for case in [
                ("2 workers", "legacy"),
                ("mirrored", "legacy"),
                ("central storage", "3"),
                ("central storage", "legacy"),
            ]
        ),
    ],
)
@pytest.mark.slow
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

    def test_callbacks_see_the_logs_of_all_replicas_after_each_batch(self, name: str, keras: str) -> None:
        one = on_one_device(keras, "batch logs")
        for task in run(name, keras)["batch logs"]:
            assert task.values["batches"] == pytest.approx(one.values["batches"], abs=1e-5)
            assert task.values["epoch"] == pytest.approx(one.values["epoch"], abs=1e-5)

    def test_predictions_keep_the_order_of_the_data(self, name: str, keras: str) -> None:
        predicted = users_own_fit(keras, name)[0].arrays["predict-of-arrays"]
        np.testing.assert_allclose(predicted, on_one_device(keras).arrays["predict-of-arrays"], atol=1e-5)

    def test_arrays_shuffled_by_keras_are_the_same_on_every_worker(self, name: str, keras: str) -> None:
        if (name, keras) == ("central storage", "legacy"):
            pytest.skip(
                "there the replicas share a metric's variables, so a padding example counts as one example"
            )
        loss = users_own_fit(keras, name)[0].arrays["loss-of-arrays"]
        np.testing.assert_allclose(loss, on_one_device(keras).arrays["loss-of-arrays"], atol=1e-5)


@pytest.mark.slow
def test_workers_agree_on_what_eager_steps_show_where_a_metric_is_zero_in_one(keras: str) -> None:
    for task in run("2 workers", keras)["eager logs"]:
        assert task.values["precision"] == [1.0] * 4


@pytest.mark.slow
def test_callback_that_only_the_chief_has_sees_each_batch_and_blocks_nobody(keras: str) -> None:
    first, second = run("2 workers", keras)["callback of the chief"]
    assert (first.values["seen"], second.values["seen"]) == (320, 0)
    np.testing.assert_array_equal(first.arrays["weights"], second.arrays["weights"])


@pytest.mark.slow
@pytest.mark.parametrize("clip", CLIPS)
def test_gradients_are_clipped_after_they_are_summed(clip: str) -> None:
    one, [two] = on_one_device("3", clip), run("mirrored", "3")[clip]
    np.testing.assert_allclose(two.arrays["weights"], one.arrays["weights"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("option", REFUSED)
def test_what_cannot_work_is_refused_before_training(option: str) -> None:
    [task] = run("mirrored", "3")[option]
    assert re.match("UnsupportedError: (optimizer|layer gru)", task.values["error"])
    assert option in task.values["error"]


@functools.cache
def on_stock_keras() -> dict[str, TaskProcess]:
    """What one process finds that nothing has patched; the last call spoils Keras."""
    calls = {
        "several steps": (f"{FUNCTIONS}:error_of_fit", {"steps": 4}),
        "keras3": (f"{FUNCTIONS}:changed_sources", {"module": "keras3"}),
        "tf_keras": (f"{FUNCTIONS}:changed_sources", {"module": "tf_keras"}),
        "changed source": (f"{FUNCTIONS}:patch_of_changed_source", {}),
    }
    found = run_in_turn(calls, Cluster(**CLUSTERS["mirrored"]), job_options={"patch_keras": False})
    return {name: task for name, [task] in found.items()}


class TestStockKeras3StillFails:
    """Each fails when Keras is fixed upstream: then raydist's patch can go."""

    @pytest.mark.slow
    def test_at_several_steps_under_mirrored(self) -> None:
        assert "You must feed a value for placeholder" in on_stock_keras()["several steps"].values["error"]

    @pytest.mark.slow
    def test_at_fit_on_2_workers(self) -> None:
        cluster, options = Cluster(**CLUSTERS["2 workers"]), {"patch_keras": False}
        for task in run_function(f"{FUNCTIONS}:error_of_fit", cluster, steps=1, job_options=options):
            assert "PerReplica" in task.values["error"]


@pytest.mark.slow
def test_stock_tf_keras_still_doubles_batch_logs() -> None:
    """Fails when tf_keras is fixed upstream."""
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2, keras="legacy")
    first, second = run_function(f"{FUNCTIONS}:batch_logs", cluster, job_options={"patch_keras": False})
    assert first.values["batches"][-1] == pytest.approx(2 * first.values["epoch"], rel=0.01)
    assert second.values["batches"] == pytest.approx(first.values["batches"], rel=1e-6)


@pytest.mark.parametrize("module", ["keras3", "tf_keras"])
def test_every_replaced_function_is_the_one_it_was_written_for(module: str) -> None:
    task = on_stock_keras()[module]
    assert task.values["changed"] == []
    assert task.values["count"] >= 7


@pytest.mark.slow
def test_a_changed_source_is_refused_with_the_remedy() -> None:
    task = on_stock_keras()["changed source"]
    assert "TensorFlowTrainer.fit" in task.values["error"]
    assert "--no-patch-keras" in task.values["error"]
