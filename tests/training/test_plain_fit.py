"""What a run shows of `model.fit` without any callback of raydist's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raydist.storage.run_storage import open_run
from tests.support.processes import Cluster, run_function, run_in_turn

FUNCTIONS = "tests.support.plain_functions"
# The last one leaves a task that has failed.
CALLS: dict[str, tuple[str, dict[str, object]]] = {
    name: (f"{FUNCTIONS}:{name}", {})
    for name in (
        "fits_in_a_row",
        "after_a_fit_with_callbacks",
        "packed",
        "fails_before_its_first_step",
        "fails_after_a_fit",
    )
}


@pytest.mark.exhaustive("2", "keras3", covered_by="[one_device-1-keraslegacy]; test_scripts.py")
@pytest.mark.slow
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(keras="legacy"),
        Cluster(strategy="multi_worker_mirrored", workers=2),
        Cluster(),
        Cluster(strategy="mirrored", devices=2, keras="legacy"),
    ],
    ids=str,
)
def test_plain_fit_is_counted_and_reported_and_nothing_else(cluster: Cluster, tmp_path: Path) -> None:
    found = run_in_turn(CALLS, cluster, storage=tmp_path)
    for task in found["fits_in_a_row"]:
        # 2 epochs of 4; as many again, where the fits inside count nothing; 5 of a loop; 4 of ctx.fit.
        assert task.values["steps"] == [8, 16, 21, 25]
        metrics = ["accuracy", "loss", "val_accuracy", "val_loss"]
        assert task.values["first"] == [2, 2, 8, metrics, None]
        trainings = [["model.fit", 1, 0], ["model.fit", 2, 8], ["train_steps", 1, 16], ["fit", 1, 21]]
        assert task.values["trainings"] == trainings
        is_told = any("length of the data is not known" in note for note in task.values["notes"])
        assert is_told == (cluster.keras != "legacy")  # tf_keras counts as raydist does
        assert task.values["awaits"] == 0
        assert task.values["has trained"]
    for task in found["after_a_fit_with_callbacks"]:
        assert task.values["steps"] == [33, 37]  # behind the 25 of before
    for task in found["packed"]:
        assert task.values["steps"] == 400
        assert task.values["largest"] > 1
    for task in found["fails_before_its_first_step"]:
        assert task.values == {"raised": "ValueError"}
    for task in found["fails_after_a_fit"]:
        # A new attempt would begin with the steps of the plain fits again, and has nothing to continue from.
        assert task.values == {"steps": 4, "awaits": 0, "failed at": 33}
    losses = global_losses(tmp_path)
    np.testing.assert_allclose(losses[:4], found["fits_in_a_row"][0].arrays["losses"], rtol=1e-6)


@pytest.mark.slow
def test_a_job_is_told_that_plain_fit_stores_no_checkpoints_and_goes_on_with_a_shuffle(keras: str) -> None:
    calls: dict[str, tuple[str, dict[str, object]]] = {
        name: (f"{FUNCTIONS}:{name}", {}) for name in ("fit_of_the_users_own", "shuffled_on")
    }
    found = run_in_turn(calls, Cluster(strategy="mirrored", devices=2, keras=keras))
    values = found["fit_of_the_users_own"][0].values
    assert values["before"] == []
    [note] = values["notes"]
    assert note.startswith("model.fit without ctx.callbacks() stores no checkpoints, so a new attempt trains")
    assert values["steps"] == 4  # the model outside of the scope is the run's, too
    values = found["shuffled_on"][0].values
    assert values["their own"] == []
    assert len(values["the same"]) == 1


@pytest.mark.slow
def test_job_that_trains_nothing_tells_so() -> None:
    [task] = run_function(f"{FUNCTIONS}:evaluates_only", Cluster())
    assert "raydist: the train function ended without reporting a step, so the run has no" in task.printed


def test_plain_fit_names_the_users_own_layers_that_depend_on_the_number_of_replicas() -> None:
    [task] = run_function(f"{FUNCTIONS}:layers_of_the_users_own", Cluster(strategy="mirrored", devices=2))
    notes = "\n".join(task.values["notes"])
    assert "layers noise draw random numbers" in notes
    assert "layers centred update their own state" in notes


@pytest.mark.slow
def test_plain_fit_of_tf_keras_is_counted_at_the_end_of_epochs_under_parameter_server() -> None:
    cluster = Cluster(strategy="parameter_server", workers=1, ps=1, keras="legacy")
    [chief] = run_function(f"{FUNCTIONS}:on_parameter_server", cluster)
    assert chief.values == {"steps": 20, "metrics": ["accuracy", "loss"], "epoch": 2}


def global_losses(storage: Path) -> list[float]:
    from raydist.outcome.status import Scope
    from tests.support.metric_rows import merge_rows, read_rows

    rows = merge_rows(read_rows(open_run(str(storage), run="test")))
    return [row.value for row in rows if row.scope is Scope.GLOBAL and row.name == "loss"]
