"""Data on which the workers could come apart: handled, or refused before the first step; never a hang."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.awkward_data import write_files
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn

FIT = "tests.support.awkward_data:fit_each"
NOT_AS_MANY = "UnsupportedError: the dataset has not as many batches on each worker: "


def two_workers(keras: str) -> Cluster:
    return Cluster(strategy="multi_worker_mirrored", workers=2, keras=keras)


def result(task: TaskProcess, case: str) -> dict[str, Any]:
    found: dict[str, Any] = task.values["results"][case]
    return found


REFUSED = (
    "endless",
    "other steps",
    "uneven",
    "uneven with steps",
    "uneven shares",
    "arrays",
    "empty batches",
)
LIKE_ONE = ("even", "generator", "endless with steps", "model.fit on arrays")
UNEVEN = {"uneven generators": 10, "uneven generated shares": 20, "even shares": 8}


@functools.cache
def on_two_workers(keras: str) -> list[TaskProcess]:
    """All cases, one after another in the same processes."""
    return run_function(FIT, two_workers(keras), cases=[*REFUSED, *LIKE_ONE, *UNEVEN])


@pytest.mark.slow
def test_data_that_the_workers_cannot_share_are_refused_in_each(keras: str) -> None:
    refused = {
        "endless": "has no end; give steps_per_epoch to fit, or steps to evaluate and predict",
        "other steps": "steps_per_epoch differs between the workers: worker/0 8, worker/1 7; give all",
        "uneven": f"{NOT_AS_MANY}worker/0 10, worker/1 7; each step needs all of them",
        "uneven with steps": f"{NOT_AS_MANY}worker/0 10, worker/1 7",
        "uneven shares": f"{NOT_AS_MANY}worker/0 20, worker/1 14",
        "arrays": "train_data is a tuple of 2; give the labels by themselves, ctx.fit(model, x, y)",
        "empty batches": "batch_size is 0; give at least 1, or leave it out",
    }
    assert refused.keys() == set(REFUSED)
    for task in on_two_workers(keras):
        for case, message in refused.items():
            assert message in result(task, case)["error"], case


@pytest.mark.slow
def test_data_without_a_known_end_train_like_those_with_one(keras: str) -> None:
    [alone] = run_function(FIT, Cluster(keras=keras), cases=LIKE_ONE)
    for task in on_two_workers(keras):
        for case in LIKE_ONE:
            num_steps = 1 if case == "model.fit on arrays" else 8
            assert result(task, case) == {"error": "", "steps": [num_steps, num_steps]}, case
            np.testing.assert_allclose(task.arrays[case], alone.arrays[case], atol=1e-5, err_msg=case)


def test_epoch_has_as_many_steps_as_it_has_data_whatever_the_one_before_had(keras: str) -> None:
    [task] = run_function(FIT, Cluster(keras=keras), cases=["growing", "shrinking"])
    assert result(task, "growing") == {"error": "", "steps": [6, 8]}
    assert result(task, "shrinking") == {"error": "", "steps": [8, 6]}


@pytest.mark.slow
def test_epoch_lasts_until_the_last_worker_has_no_batch(keras: str) -> None:
    first, second = on_two_workers(keras)
    for case, num_steps in UNEVEN.items():
        assert result(first, case) == result(second, case) == {"error": "", "steps": [num_steps] * 2}, case
        np.testing.assert_array_equal(first.arrays[case], second.arrays[case])


@pytest.fixture(scope="module")
def sharded_by_file(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[TaskProcess]]:
    folders = {name: tmp_path_factory.mktemp(name) for name in ("two", "one")}
    write_files(folders["two"], 40, 24)
    write_files(folders["one"], 64)
    cases = {"two": ["even", "generator", "files"], "one": ["files"]}  # the last one fails
    calls = {name: (FIT, {"cases": cases[name], "folder": str(folder)}) for name, folder in folders.items()}
    return run_in_turn(calls, two_workers("3"), job_options={"auto_shard": "file"})


@pytest.mark.exhaustive("auto", covered_by="[file]")
@pytest.mark.slow
@pytest.mark.parametrize("auto_shard", ["file", "auto"])
def test_fewer_files_than_workers_are_named(
    sharded_by_file: dict[str, list[TaskProcess]], tmp_path: Path, auto_shard: str
) -> None:
    tasks = sharded_by_file["one"]
    if auto_shard == "auto":
        write_files(tmp_path, 64)
        options = {"folder": str(tmp_path), "job_options": {"auto_shard": "auto"}}
        tasks = run_function(FIT, two_workers("3"), cases=["files"], **options)
    told = [result(task, "files")["error"] for task in tasks]
    # One of them finds out; the others are told by TensorFlow that it is gone.
    [named] = [error for error in told if error.startswith("UnsupportedError")]
    assert "reads 1 file, too few for 2 workers under its auto-shard policy; use --auto-shard data" in named


@pytest.mark.slow
def test_files_of_different_sizes_are_all_read(sharded_by_file: dict[str, list[TaskProcess]]) -> None:
    for task in sharded_by_file["two"]:
        assert result(task, "files") == {"error": "", "steps": [10, 10]}


@pytest.mark.slow
def test_data_without_files_are_refused_under_the_policy_for_files(
    sharded_by_file: dict[str, list[TaskProcess]],
) -> None:
    for task in sharded_by_file["two"]:
        for case in ("even", "generator"):
            assert "reads no files that TensorFlow could divide" in result(task, case)["error"]


@pytest.mark.slow
def test_composite_tensors_without_rows_are_refused_on_two_replicas_and_train_on_one_device() -> None:
    function = "tests.support.batch_functions:of_graphs"
    for keras in ("3", "legacy"):
        [task] = run_function(function, Cluster(strategy="mirrored", devices=2, keras=keras))
        for told in task.values["told"].values():
            assert told.startswith(
                "UnsupportedError: the data have a Graph, which raydist cannot cut by rows"
            )
        of_graphs = task.values["off"]["graphs"]
        if keras == "legacy":
            assert of_graphs == pytest.approx(task.values["off"]["tensors"])
        else:
            assert "the data have a Graph, which fit and evaluate of Keras 3 do not take" in of_graphs
    [task] = run_function(function, Cluster(keras="legacy"))  # Keras 3 itself takes no such data
    assert task.values["told"] == {"fit": 1.0, "ctx.fit": 1.0, "evaluate": 1.0, "predict": 0.0}


@pytest.mark.slow
def test_data_without_batches_and_a_name_that_the_context_lacks_are_told(keras: str) -> None:
    [task] = run_function(
        "tests.support.mistake_functions:slips", Cluster(strategy="mirrored", devices=2, keras=keras)
    )
    for name in ("fit", "predict", "steps"):
        assert task.values[name].endswith("add .batch(GLOBAL_BATCH_SIZE) to the dataset")
    assert task.values["save"].startswith("ctx.save got nothing to save; name what it stores: ctx.save(step=")
    assert task.values["name"] == "ctx has no 'num_wokers'; did you mean num_workers?"
    assert task.values["export"].startswith("ctx has no 'export'; ctx.fit exports the model at its end")
    assert task.values["rank"].startswith("ctx has no 'rank'; ctx.task.index is the number of the worker")
    assert task.values["epochs"] == "ctx.fit got epochs=1.5; give a whole number"
    assert task.values["size"] == "ctx.fit got batch_size='8'; give a whole number"
    assert task.values["class"] == (
        "ctx.fit got the class EarlyStopping as a callback; give an object of it, such as EarlyStopping()"
    )
