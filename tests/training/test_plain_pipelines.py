"""Plain `tf.data` pipelines at several workers: each has the rows that it would have, and maps no others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.pipeline_trainings import FILES, PIPELINES as TRAINING_PIPELINES, write_records
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

pytestmark = pytest.mark.slow

PIPELINES = "tests.support.plain_pipelines"
TRAININGS = "tests.support.pipeline_trainings"
COUNT = 124

# One of each kind, by the number of workers. The others differ in what tf.data does, not raydist.
SOME = {
    2: (
        *("two maps", "even", "shuffle, repeat after batch", "dict", "ragged", "row by row"),
        *("named tuples", "named tuples cached", "lookup after batch"),
    ),
    3: ("batches smaller than the replicas", "repeat before batch", "map after batch of one size"),
}


def assert_shared(calls: dict[str, list[int]], names: Iterable[str]) -> None:
    """That 2 workers together map no example twice, but one for padding."""
    for name in names:
        alone, *workers = calls[name]
        assert sum(workers) <= alone + 4, name
        assert not alone or max(workers) < alone, name


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("lines")
    write_records(path, COUNT)
    assert len(list(path.iterdir())) == FILES
    return str(path)


@pytest.fixture(scope="module")
def alone(folder: str) -> dict[str, TaskProcess]:
    """What one device finds, in calls one after another."""
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "noted": (f"{TRAININGS}:noted", {"folder": folder}),  # before the others, which share its process
        **{
            f"rows of {workers}": (f"{PIPELINES}:compare", {"names": names, "splits": [(workers, 1)]})
            for workers, names in SOME.items()
        },
        "walked": (f"{PIPELINES}:walked", {}),
        "passes": (f"{TRAININGS}:passes_from_each_batch", {}),
        "resumed": (f"{TRAININGS}:resumed", {"folder": folder}),
    }
    return {name: task for name, [task] in run_in_turn(calls, Cluster(), timeout_s=800).items()}


@pytest.mark.parametrize("workers", list(SOME))
def test_rows_of_the_workers_make_up_each_global_batch(alone: dict[str, TaskProcess], workers: int) -> None:
    found = alone[f"rows of {workers}"].values
    assert found["calls"].keys() == set(SOME[workers])
    assert found["wrong"] == []
    if workers == 2:
        assert found["calls"]["two maps"] == [23, 14, 9]  # 3+3+3+3+2 of 5+5+5+5+3
        assert_shared(found["calls"], (name for name in SOME[2] if name != "named tuples cached"))


@pytest.mark.exhaustive(covered_by="one of each kind, above")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("workers", "replicas", "shares"),
    [(3, 1, ()), (2, 1, ()), (2, 2, ()), (5, 1, ()), (3, 1, (2, 1, 2)), (2, 2, (3, 1))],
)
def test_rows_make_up_each_global_batch_of_every_pipeline(
    workers: int, replicas: int, shares: tuple[int, ...]
) -> None:
    given = {"splits": [(workers, replicas)], "shares": shares}
    [task] = run_function(f"{PIPELINES}:compare", Cluster(), timeout_s=1500, **given)
    assert len(task.values["calls"]) > 60
    assert task.values["wrong"] == []


def test_walk_ends_where_the_place_of_a_map_matters(alone: dict[str, TaskProcess]) -> None:
    found = alone["walked"].values["found"]
    assert {name: is_found for name, (_, is_found) in found.items()} == {
        name: expected for name, (expected, _) in found.items()
    }


def several(workers: int, keras: str) -> Cluster:
    return Cluster(strategy="multi_worker_mirrored", workers=workers, keras=keras)


TRAINED = {f"{TRAININGS}:trained": {"names": ["a last batch of one", "shuffled"]}}
TRAINED_OTHERWISE = {
    f"{TRAININGS}:trained": {"names": list(TRAINING_PIPELINES)},
    f"{TRAININGS}:used_otherwise": {},
}


@pytest.mark.exhaustive("2 workers, tf_keras", "3 workers", covered_by="the same with 2 workers")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("workers", "keras", "trainings"),
    [(2, "3", TRAINED), (3, "3", TRAINED_OTHERWISE), (2, "legacy", TRAINED_OTHERWISE)],
    ids=["2 workers", "3 workers", "2 workers, tf_keras"],
)
def test_training_equals_one_device(
    folder: str, workers: int, keras: str, trainings: dict[str, dict[str, Any]]
) -> None:
    calls = {target: (target, {**given, "folder": folder}) for target, given in trainings.items()}
    expected = run_in_turn(calls, Cluster(keras=keras), timeout_s=800)
    found = run_in_turn(calls, several(workers, keras), timeout_s=800)
    for target, [alone] in expected.items():
        assert alone.arrays
        for task in found[target]:
            for name, array in alone.arrays.items():
                np.testing.assert_allclose(task.arrays[name], array, atol=1e-5, err_msg=name)
            assert not [note for note in task.values["notes"] if "maps all examples" in note]


def test_map_that_every_worker_runs_is_noted_once_and_changes_no_result(
    folder: str, alone: dict[str, TaskProcess]
) -> None:
    expected = alone["noted"]
    assert not [note for note in expected.values["notes"] if "maps all examples" in note]
    for task in run_function(f"{TRAININGS}:noted", several(2, "3"), folder=folder):
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5)
        [note] = [note for note in task.values["notes"] if "maps all examples" in note]
        assert "because .shuffle comes after .map (put .map after that)" in note
        assert "raydist.data, --auto-shard file and --data-workers divide this work" in note


@pytest.mark.exhaustive("legacy", "3-4", covered_by="[3-None]; test_context.py: resumed_fit")
@pytest.mark.parametrize(("keras", "steps_per_epoch"), [("3", None), ("3", 4), ("legacy", None)])
def test_run_that_resumes_inside_an_epoch_ends_as_the_undisturbed_one(
    folder: str, alone: dict[str, TaskProcess], tmp_path: Path, keras: str, steps_per_epoch: int | None
) -> None:
    given = {"folder": folder, "steps_per_epoch": steps_per_epoch}
    target, expected = f"{TRAININGS}:resumed", alone["resumed"]
    if (keras, steps_per_epoch) != ("3", None):
        [expected] = run_function(target, Cluster(keras=keras), **given)
    options: dict[str, Any] = {"storage": tmp_path, "job_options": {"checkpoint_every": "3"}}
    run_function(target, several(2, keras), stop_after=7, **given, **options)
    tasks: list[TaskProcess] = run_function(target, several(2, keras), attempt=1, **given, **options)
    for task in tasks:
        assert task.values["restored_step"] == 6
        np.testing.assert_allclose(task.arrays["weights"], expected.arrays["weights"], atol=1e-5)


def test_random_numbers_in_a_parallel_map_are_told() -> None:
    target = "tests.support.plain_pipelines:parallel_draws"
    [task] = run_function(target, Cluster(strategy="mirrored", devices=2))
    unseeded, serial, stateless, [note] = task.values["seen"]
    assert (unseeded, serial, stateless) == ([], [], [])
    assert "mixed draws or counts (Random" in note
    assert "leave num_parallel_calls out" in note


def test_loop_takes_the_passes_that_are_done_by_their_seeds(alone: dict[str, TaskProcess]) -> None:
    task = alone["passes"]
    assert task.values["other"] == []
    by_reading = {"drawn", "of unknown length", "endless"}
    assert task.values["dropped"] == {
        name: 12 if name in by_reading else 2 for name in task.values["dropped"]
    }
    assert by_reading < task.values["dropped"].keys()
