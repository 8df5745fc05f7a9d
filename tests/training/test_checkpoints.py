"""Checkpoints in real tasks: stored while training continues, and none that is half-written is read."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.processes import Cluster, TaskProcess, run_function, started

# Up to four runs of two tasks each, where others may use the machine too.
pytestmark = pytest.mark.timeout(1200)

FUNCTIONS = "tests.support.checkpoint_functions"
TWO_WORKERS = Cluster(strategy="multi_worker_mirrored", workers=2)
TWO_DEVICES = Cluster(strategy="mirrored", devices=2)

Undisturbed = Callable[..., TaskProcess]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Trains 3 epochs of the model that several functions train, once for all tests; returns the chief."""

    @functools.cache
    def run(cluster: Cluster, is_size_known: bool = True) -> TaskProcess:
        options = {"is_size_known": is_size_known, "storage": tmp_path_factory.mktemp("undisturbed")}
        return run_function(f"{FUNCTIONS}:ends_an_epoch", cluster, **options)[0]

    return run


@pytest.mark.slow
def test_training_goes_on_while_a_checkpoint_is_stored(keras: str) -> None:
    [task] = run_function(
        f"{FUNCTIONS}:upload_waits_for_training",
        replace(TWO_DEVICES, keras=keras),
        job_options={"checkpoint_every": "5"},
    )
    assert task.values["committed"] == [5, 10, 14]
    assert task.values["checkpoint"].endswith("step-14-a0")
    assert "raydist-checkpoint" not in task.values["threads"]


REPLACED = (
    r"StorageError: the run's storage was lost or replaced during the run: .*/storage/test/token is missing"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "cluster"), [("fit", TWO_WORKERS), ("model.fit", Cluster())], ids=["fit", "no checkpoint"]
)
def test_storage_replaced_during_the_run_ends_it_with_that_error(
    way: str, cluster: Cluster, tmp_path: Path
) -> None:
    arguments = {"way": way, "storage": tmp_path / "storage", "has_token": True}
    with pytest.raises(AssertionError, match=REPLACED):
        run_function(f"{FUNCTIONS}:storage_is_replaced", cluster, **arguments)
    assert list((tmp_path / "storage").rglob("checkpoints/*")) == []


@pytest.mark.slow
def test_checkpoint_that_is_gone_at_the_end_of_the_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"StorageError: checkpoint .*/step-7-a0 was stored, and is not"):
        run_function(f"{FUNCTIONS}:checkpoint_is_deleted", Cluster(), storage=tmp_path)


@pytest.mark.slow
def test_what_cannot_be_stored_ends_the_training_with_its_own_error() -> None:
    options = {"checkpoint_every": "5"}
    [task] = run_function(f"{FUNCTIONS}:checkpoints_cannot_be_stored", Cluster(), job_options=options)
    assert task.values["error"].startswith("StorageError: cannot ")
    assert "checkpoints" in task.values["error"]
    assert task.values["step"] < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("way", ["watched by the chief", "own loop"])
def test_command_to_one_worker_makes_all_save_inside_an_epoch(
    way: str, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    with started(f"{FUNCTIONS}:train_long", TWO_WORKERS, storage=tmp_path, way=way) as tasks:
        wait_until(lambda: trains(tmp_path, tasks), timeout_s=300)
        for num_commands in (1, 2):
            tasks[1].process.send_signal(signal.SIGHUP)  # what Command.SAVE does in a task
            wait_until(lambda: all_run(tasks) and len(saved_steps(tmp_path)) == num_commands, timeout_s=300)  # noqa: B023
        tasks[0].process.send_signal(signal.SIGALRM)  # Command.SAVE_LAST, after which nothing is trained
        wait_until(lambda: all_run(tasks) and len(saved_steps(tmp_path)) == 3, timeout_s=300)
        tasks[1].process.send_signal(signal.SIGHUP)
        time.sleep(1.0)
        assert all_run(tasks)
        assert len(saved_steps(tmp_path)) == 3
    assert [name for name in tmp_path.rglob("state.json") if json.loads(name.read_text())["epoch"]] == []


@pytest.mark.slow
def test_killed_run_that_saves_by_seconds_ends_as_the_undisturbed_one(
    tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    target = f"{FUNCTIONS}:train_long"
    arguments = {"way": "fit", "num_steps": 3000, "job_options": {"checkpoint_every": "1s"}}
    [expected, _] = run_function(target, TWO_WORKERS, storage=tmp_path / "a", **arguments)
    with started(target, TWO_WORKERS, storage=tmp_path / "b", **arguments) as tasks:
        wait_until(lambda: all_run(tasks) and saved_steps(tmp_path / "b"), timeout_s=300)
        tasks[1].kill()
    [task, _] = run_function(target, TWO_WORKERS, storage=tmp_path / "b", attempt=1, **arguments)
    assert 0 < task.values["restored_step"] < task.values["step"] == 3000
    np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5)


def saved_steps(storage: Path) -> list[int]:
    return sorted(int(path.parent.name.split("-")[1]) for path in storage.rglob("_COMMITTED"))


def trains(storage: Path, tasks: list[TaskProcess]) -> bool:
    """Whether a metric is stored, which happens every second once steps continue."""
    return all_run(tasks) and any(storage.rglob("metrics/*.parquet"))


def all_run(tasks: list[TaskProcess]) -> bool:
    for task in tasks:
        assert task.process.poll() is None, task.text()
    return True


@pytest.mark.exhaustive("1+1", "keraslegacy", covered_by="[mirrored-2-keras3]")
@pytest.mark.slow
@pytest.mark.parametrize(
    "cluster",
    [
        TWO_DEVICES,
        replace(TWO_WORKERS, keras="legacy"),
        Cluster(strategy="parameter_server", workers=1, ps=1),
    ],
    ids=str,
)
def test_early_stopping_ends_a_resumed_run_at_the_same_epoch(cluster: Cluster, tmp_path: Path) -> None:
    target = f"{FUNCTIONS}:early_stopping"
    [expected, *_] = run_function(target, cluster, storage=tmp_path / "a")
    assert expected.values["epochs"] == [0, 1, 2, 3, 4]
    assert expected.values["awaited_steps"] == 0  # or the watchdog would miss those of the other epochs
    run_function(target, cluster, storage=tmp_path / "b", crash_in=4)
    # The second resume finds a run that has ended.
    for attempt, restored_step in ((1, 24), (2, 30)):
        for task in run_function(target, cluster, storage=tmp_path / "b", attempt=attempt):
            assert task.values == {**expected.values, "restored_step": restored_step}
            if cluster.strategy != "parameter_server":  # whose two runs differ in the order of steps
                np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.exhaustive("2", covered_by="[one_device-1-keras3]; tests/programs, whose runs are killed, too")
@pytest.mark.slow
@pytest.mark.parametrize(
    "cluster", [Cluster(), TWO_DEVICES, TWO_WORKERS, replace(TWO_WORKERS, keras="legacy")], ids=str
)
def test_resumed_run_draws_the_random_numbers_of_the_undisturbed_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    target, options = f"{FUNCTIONS}:random_numbers", {"checkpoint_every": "3"}
    [expected, *_] = run_function(target, cluster, storage=tmp_path / "a", job_options=options)
    assert expected.values["has_noise"] == (cluster.strategy == "one_device")
    run_function(target, cluster, storage=tmp_path / "b", crash_at=11, job_options=options)
    for task in run_function(target, cluster, storage=tmp_path / "b", attempt=1, job_options=options):
        assert (task.values["restored_step"], task.values["notes"]) == (9, [])
        np.testing.assert_array_equal(task.arrays["drawn"], expected.arrays["drawn"][9:])
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.exhaustive("1", "multi_worker_mirrored", covered_by="the same on 2 devices")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "is_size_known", "every"),
    [
        (TWO_DEVICES, True, 7),
        (TWO_WORKERS, True, 7),
        (Cluster(), False, 7),
        (Cluster(), False, 3),
        (Cluster(keras="legacy"), True, 7),
    ],
    ids=str,
)
def test_run_that_dies_between_the_last_step_and_the_end_of_an_epoch_loses_neither(
    undisturbed: Undisturbed, cluster: Cluster, is_size_known: bool, every: int, tmp_path: Path
) -> None:
    target, options = f"{FUNCTIONS}:ends_an_epoch", {"checkpoint_every": str(every)}  # of 7 steps an epoch
    run = functools.partial(run_function, target, cluster, job_options=options, is_size_known=is_size_known)
    expected = undisturbed(cluster, is_size_known)
    run(storage=tmp_path, crash_in=1)
    for task in run(storage=tmp_path, attempt=1):
        assert task.values == expected.values == {"steps": 21}
        np.testing.assert_allclose(task.arrays["losses"], expected.arrays["losses"], atol=1e-6)
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-6)


@pytest.mark.exhaustive("legacy", "second model", covered_by="[first model-3]")
@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("second", [False, True], ids=["first model", "second model"])
def test_variables_that_only_a_step_uses_are_restored_each_to_its_own_place(
    second: bool, keras: str, tmp_path: Path
) -> None:
    # A step of the user's that updates variables means something else on each replica: one device.
    target, where = f"{FUNCTIONS}:two_models_with_state_outside", Cluster(keras=keras)
    [expected] = run_function(target, where, epochs=3, second=second, storage=tmp_path / "a")
    disturbed = tmp_path / "b"
    run_function(target, where, epochs=1, second=second, storage=disturbed)
    [resumed] = run_function(target, where, epochs=3, second=second, storage=disturbed, attempt=1)
    assert resumed.values["restored_step"] == (3 if second else 1) * 7
    for name in ("weights", "outside"):
        np.testing.assert_allclose(resumed.arrays[name], expected.arrays[name], atol=1e-6)


@pytest.mark.slow
def test_generators_of_a_loop_are_saved_and_restored(tmp_path: Path) -> None:
    [first] = run_function(f"{FUNCTIONS}:generators", Cluster(), storage=tmp_path)
    [second] = run_function(f"{FUNCTIONS}:generators", Cluster(), storage=tmp_path, attempt=1)
    assert first.values["drawn"] == second.values["drawn"]


@pytest.fixture(scope="module")
def saved_by_two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of a run that has ended."""
    storage = tmp_path_factory.mktemp("saved")
    run_function(f"{FUNCTIONS}:restored_differently", TWO_WORKERS, storage=storage, way="neither")
    return storage


@pytest.mark.exhaustive("no checkpoint", covered_by="[another weight]")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "message"),
    [
        (
            "another weight",
            "UnsupportedError: after the restore of .*step-7-a0 sequential/dense/kernel:0 of worker/1 diff",
        ),
        (
            "no checkpoint",
            r"CheckpointError: .*worker/0 that of step 7, worker/1 none\): worker/1 does not see the same",
        ),
    ],
)
def test_worker_that_restored_something_else_is_named(
    saved_by_two_workers: Path, way: str, message: str, tmp_path: Path
) -> None:
    target = f"{FUNCTIONS}:restored_differently"
    shutil.copytree(saved_by_two_workers, tmp_path, dirs_exist_ok=True)
    with pytest.raises(AssertionError, match=message):
        run_function(target, TWO_WORKERS, storage=tmp_path, way=way, attempt=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "expected"),
    [([[5], [5]], []), ([[5], [6]], [1]), ([[5], [6], [6]], [0]), ([[5], [6], [7]], [1, 2]), ([[5]], [])],
)
def test_inconsistent_workers_differ_from_most_or_from_the_chief(
    rows: list[list[int]], expected: list[int]
) -> None:
    from raydist.training.cluster.collectives import inconsistent_workers

    assert inconsistent_workers(rows) == expected
