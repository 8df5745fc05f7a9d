"""ctx.fit and ctx.train_steps: reports, checkpoints, and continuing where the last one ended."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from math import nan
from pathlib import Path

import numpy as np
import pytest

from raydist.spec.tasks import TaskId
from raydist.storage.checkpoint_marker import STATE_FILE, Checkpoint, decode_state, encode_state
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.run_storage import open_run
from raydist.training.reporting.progress import TaskProgress
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

FUNCTIONS = "tests.support.train_functions"
TWO_WORKERS = {"strategy": "multi_worker_mirrored", "workers": 2}
TWO_DEVICES = {"strategy": "mirrored", "devices": 2}

Undisturbed = Callable[..., tuple[list[TaskProcess], Path]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Runs 5 epochs of ctx.fit on a cluster, once for all tests; returns its tasks and its storage."""

    @functools.cache
    def run(cluster: Cluster) -> tuple[list[TaskProcess], Path]:
        storage = tmp_path_factory.mktemp("undisturbed")
        return run_function(f"{FUNCTIONS}:fit_through_context", cluster, epochs=5, storage=storage), storage

    return run


@pytest.mark.slow
def test_resumed_fit_ends_as_the_undisturbed_one(undisturbed: Undisturbed, tmp_path: Path) -> None:
    target, where = f"{FUNCTIONS}:fit_through_context", Cluster(**TWO_WORKERS)
    [expected, *_], _ = undisturbed(where)
    disturbed = {"epochs": 5, "storage": tmp_path, "job_options": {"checkpoint_every": "epoch"}}
    run_function(target, where, stop_after=10, **disturbed)
    for task in run_function(target, where, attempt=1, **disturbed):
        assert task.values["status"]["restored_step"] == 7
        assert task.values["status"]["step"] == expected.values["status"]["step"] == 35
        assert task.values["epochs"] == [0, 1, 2, 3, 4]
        for name in ("weights", "loss", "accuracy"):
            np.testing.assert_allclose(task.arrays[name], expected.arrays[name], atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_chief_alone_writes_and_keeps_three(undisturbed: Undisturbed) -> None:
    tasks, storage = undisturbed(Cluster(**TWO_WORKERS))
    checkpoints = storage / "test" / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-21-a0", "step-28-a0", "step-35-a0"]
    assert tasks[0].values["status"]["checkpoint"] == str(checkpoints / "step-35-a0")
    assert tasks[1].values["status"]["checkpoint"] is None
    assert not (storage / "test" / "export").exists()  # which is turned off
    assert json.loads((checkpoints / "step-35-a0" / "state.json").read_text())["epoch"] == 5


@pytest.mark.slow
def test_metrics_hold_one_global_value_per_epoch(undisturbed: Undisturbed) -> None:
    from raydist.outcome.status import Scope
    from tests.support.metric_rows import merge_rows, read_rows

    [first, _], storage = undisturbed(Cluster(**TWO_WORKERS))
    rows = merge_rows(read_rows(open_run(str(storage), run="test")))
    losses = [row for row in rows if row.scope is Scope.GLOBAL and row.name == "loss"]
    assert [(row.step, row.epoch, row.task) for row in losses] == [
        (7 * epoch, epoch, TaskId.parse("worker/0")) for epoch in (1, 2, 3, 4, 5)
    ]
    np.testing.assert_allclose([row.value for row in losses], first.arrays["loss"], rtol=1e-6)


@pytest.mark.slow
def test_train_steps_goes_on_inside_a_call_of_a_resumed_run(tmp_path: Path) -> None:
    target = f"{FUNCTIONS}:train_steps_through_context"
    where = Cluster(**TWO_DEVICES)
    options = {"checkpoint_every": "5"}
    [expected] = run_function(target, where, storage=tmp_path / "a", job_options=options)
    disturbed = {"storage": tmp_path / "b", "job_options": options}
    [stopped] = run_function(target, where, stop_after=12, **disturbed)
    assert stopped.values["status"]["checkpoint"].endswith("step-10-a0")
    [resumed] = run_function(target, where, attempt=1, **disturbed)
    assert resumed.values["status"]["restored_step"] == 10
    np.testing.assert_allclose(resumed.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.slow
def test_optimizers_that_the_first_step_builds_are_restored(keras: str, tmp_path: Path) -> None:
    target, where = f"{FUNCTIONS}:unbuilt_optimizers", Cluster(**TWO_DEVICES, keras=keras)
    [expected] = run_function(target, where, storage=tmp_path / "a", num_steps=8)
    run_function(target, where, storage=tmp_path / "b", num_steps=4)
    [resumed] = run_function(target, where, storage=tmp_path / "b", attempt=1, num_steps=8)
    np.testing.assert_allclose(resumed.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.exhaustive("1", "multi_worker_mirrored", "keraslegacy", covered_by="[mirrored-2-keras3]")
@pytest.mark.slow
@pytest.mark.parametrize(
    "where",
    [
        Cluster(**TWO_DEVICES),
        Cluster(),
        Cluster(**TWO_DEVICES, keras="legacy"),
        Cluster(**TWO_WORKERS),
        Cluster(strategy="parameter_server", workers=1, ps=2),
    ],
    ids=str,
)
def test_loop_whose_checkpoints_lack_what_it_changes_is_noted(where: Cluster) -> None:
    found = run_function(f"{FUNCTIONS}:loops_that_save_too_little", where)[0].values
    [nothing] = found["nothing"]
    assert nothing.startswith("train_steps saves no checkpoints, because ctx.restore was given nothing")
    [model] = found["the model"]
    assert re.search(r"not given \(seen, (adam/)?iteration, .* and \d+ more\): checkpoints", model), model
    [other] = found["all but one"]
    assert other.startswith("train_steps changes variables that ctx.restore was not given (seen): ")
    assert found["all"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "stops", [{"stop_after": 14}, {"saves_at": 5, "stop_after": 7}], ids=["in train_steps", "in the loop"]
)
def test_train_steps_does_its_own_steps_after_a_loop_that_has_counted(
    stops: dict[str, int], tmp_path: Path
) -> None:
    target, given = f"{FUNCTIONS}:own_loop_before_train_steps", {"job_options": {"checkpoint_every": "2"}}
    run_function(target, Cluster(), storage=tmp_path, **stops, **given)
    [resumed] = run_function(target, Cluster(), storage=tmp_path, attempt=1, **given)
    assert resumed.values == {"total": 10 * 1.0 + 8 * 100.0, "step": 18}


@pytest.mark.slow
def test_second_fit_resumes_without_repeating_the_first(tmp_path: Path) -> None:
    target, where = f"{FUNCTIONS}:two_fits", Cluster(**TWO_DEVICES)
    [expected] = run_function(target, where, storage=tmp_path / "a")
    assert expected.values["status"]["step"] == 20
    assert expected.values["status"]["checkpoint"].endswith("step-20-a0")
    run_function(target, where, storage=tmp_path / "b", crash_in=1)
    [resumed] = run_function(target, where, storage=tmp_path / "b", attempt=1)
    assert resumed.values["status"]["restored_step"] == 12
    assert resumed.values["epochs"] == [0, 1, 2]
    assert expected.values["status"]["trainings"] == [["fit", 1, 0], ["fit", 2, 8]]
    assert resumed.values["status"]["trainings"] == []  # it is inside of the second
    np.testing.assert_allclose(resumed.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.slow
def test_trainings_that_share_a_shuffle_go_on_with_it_after_a_resume(tmp_path: Path, keras: str) -> None:
    target, where = f"{FUNCTIONS}:shared_shuffles", Cluster(**TWO_DEVICES, keras=keras)
    [expected] = run_function(target, where, storage=tmp_path / "a")
    run_function(target, where, storage=tmp_path / "b", crashes=True)
    [resumed] = run_function(target, where, storage=tmp_path / "b", attempt=1)
    assert resumed.values["status"]["restored_step"] > 0
    for name in "parts", "repeated", "whole", "twice", "loop":
        np.testing.assert_allclose(resumed.arrays[name], expected.arrays[name], atol=1e-6, err_msg=name)
    for task in expected, resumed:
        assert sum("depends on timing" in note for note in task.values["status"]["notes"]) == 1


@functools.cache
def users_fit(keras: str) -> np.ndarray:
    """Returns the weights of 5 epochs of the user's own fit, with callbacks of the context."""
    where = Cluster(**TWO_DEVICES, keras=keras)  # type: ignore[arg-type]
    [task] = run_function(f"{FUNCTIONS}:users_fit_with_callbacks", where, epochs=5)
    return task.arrays["weights"]


@pytest.mark.slow
def test_callbacks_resume_the_users_own_fit_at_an_epoch(tmp_path: Path, keras: str) -> None:
    target, where = f"{FUNCTIONS}:users_fit_with_callbacks", Cluster(**TWO_DEVICES, keras=keras)
    [first] = run_function(target, where, storage=tmp_path, epochs=2)
    assert first.values["status"]["checkpoint"].endswith("step-8-a0")
    [more] = run_function(target, where, storage=tmp_path, epochs=5, attempt=1)
    np.testing.assert_allclose(more.arrays["weights"], users_fit(keras), atol=1e-6)
    assert (more.values["status"]["restored_step"], more.values["status"]["step"]) == (8, 20)
    assert more.values["status"]["checkpoint"].endswith("step-20-a1")
    # Where the first one began belongs to that one alone.
    assert more.values["epochs of the next fit"] == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dataset", "sequence"])
def test_callbacks_resume_the_users_own_fit_inside_an_epoch(tmp_path: Path, form: str, keras: str) -> None:
    target, where = f"{FUNCTIONS}:users_fit_with_callbacks", Cluster(**TWO_DEVICES, keras=keras)
    given = {"storage": tmp_path, "form": form, "epochs": 5, "job_options": {"checkpoint_every": "3"}}
    run_function(target, where, crash_after=11, **given)
    [resumed] = run_function(target, where, attempt=1, **given)
    assert resumed.values["status"]["restored_step"] == 9
    if form == "dataset":
        assert resumed.values["status"]["notes"] == []
        np.testing.assert_allclose(resumed.arrays["weights"], users_fit(keras), atol=1e-6)
    else:
        [note] = resumed.values["status"]["notes"]
        assert note.startswith(
            "the data of this model.fit restart from the beginning after the restore: PyDatasets"
        )


@functools.cache
def on_two_workers() -> dict[str, list[TaskProcess]]:
    names = ("input_context", "warmed_up")
    return run_in_turn({name: (f"{FUNCTIONS}:{name}", {}) for name in names}, Cluster(**TWO_WORKERS))


@pytest.mark.slow
def test_function_of_an_input_context_shards_for_itself() -> None:
    for task in on_two_workers()["input_context"]:
        assert task.values["epochs"] == 2
        assert task.values["status"]["step"] == 9 + 8


@pytest.mark.parametrize(
    ("metric", "expected"), [("val_loss", 20), ("accuracy", 10), ("missing", None), (None, None)]
)
def test_best_step_knows_which_way_is_better(metric: str | None, expected: int | None) -> None:
    from raydist.training.checkpointing.schedule import best_step

    committed = [
        Checkpoint(
            step=step, attempt=0, uri="", files=(), info={"metrics": {"val_loss": loss, "accuracy": right}}
        )
        for step, loss, right in [(40, nan, nan), (30, 0.5, 0.7), (20, 0.4, 0.8), (10, 0.6, 0.9)]
    ]
    assert best_step(committed, metric) == expected


def test_best_step_is_kept_of_each_fit_and_of_those_whose_markers_name_none() -> None:
    from raydist.training.checkpointing.schedule import best_steps

    values = [(1, 3.27, {}), (2, 3.1, {}), (3, 3.0, {"fit": 0}), (4, 3.2, {"fit": 0}), (5, 3.46, {"fit": 1})]
    committed = [
        Checkpoint(step=step, attempt=0, uri="", files=(), info={"metrics": {"loss": loss}, **fit})
        for step, loss, fit in values
    ]
    assert best_steps(committed, "loss") == {2, 3, 5}
    assert best_steps(committed, None) == set()


def test_best_files_are_those_of_the_fit_also_where_the_markers_do_not_name_it(tmp_path: Path) -> None:
    from raydist.training.checkpointing.checkpoints import TaskCheckpoints

    store, chief = CheckpointStore(open_run(str(tmp_path), run="r")), TaskId.parse("worker/0")
    for step, fit, loss in [(1, 0, 3.27), (2, 0, 3.1), (3, 1, 3.46), (4, 1, 3.68)]:
        files = {STATE_FILE: encode_state({"fit": fit, "step": step})}
        info = {"metrics": {"loss": loss}, **({"fit": fit} if step == 4 else {})}
        store.commit(step=step, attempt=0, files=files, info=info)
    progress = TaskProgress(chief)
    checkpoints = TaskCheckpoints(
        store, attempt=0, is_chief=True, keep=3, keep_best="loss", progress=progress
    )  # fmt: skip
    found = [checkpoints.best_files(fit=fit) for fit in range(3)]
    assert [files and decode_state(files[STATE_FILE])["step"] for files in found] == [2, 3, None]
    assert progress.status().notes == (
        "no checkpoint of this ctx.fit has the metric of --keep-best loss, so its last weights are exported",
    )


@pytest.mark.slow
def test_storage_that_fails_does_not_hide_what_the_train_function_raised(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught:
        run_function(f"{FUNCTIONS}:raises_where_metrics_cannot_be_stored", Cluster(), storage=tmp_path)
    lines = str(caught.value).splitlines()
    assert lines[-1].endswith("ValueError: the user's own mistake")
    assert "the last metrics are lost: cannot write" in str(caught.value)


@pytest.mark.slow
def test_learning_rate_warms_up_and_travels_with_the_model(keras: str) -> None:
    if keras == "3":
        tasks = on_two_workers()["warmed_up"]
    else:
        tasks = run_function(f"{FUNCTIONS}:warmed_up", Cluster(keras=keras))
    for task in tasks:
        assert task.values["rates"] == pytest.approx([0.1, 0.175, 0.25, 0.325, 0.4, 0.4])
        assert task.values["loaded"]["end_learning_rate"] == pytest.approx(0.4)
        assert task.values["float"] == pytest.approx(0.2)
        assert (
            "detail: learning rate 0.4: 0.1 for batches of 4, scaled by the linear rule to 16, "
            "over 4 steps of warm-up" in task.values["notes"]
        )


def test_logs_of_epochs_come_back_with_their_arrays() -> None:
    """Such as those of a metric that returns one value for each class."""
    from raydist.training.checkpointing import saved_state

    history = ({"loss": np.float32(0.5), "f1_score": np.array([0.25, np.nan], "float32")},)
    content = encode_state({"step": 3, "history": saved_state.packed_history(history)})
    state = saved_state.SavedState.read({STATE_FILE: content}, uri="here")
    [logs] = state.history
    assert logs["loss"] == 0.5
    np.testing.assert_array_equal(logs["f1_score"], [0.25, np.nan])
