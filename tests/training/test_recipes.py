"""raydist.data under strategies: every number of replicas trains on the same batches in the same order."""

from __future__ import annotations

import functools
import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.data_functions import batches, numbers, write_parquet
from tests.support.lanes import num_lanes
from tests.support.object_store import s3_environ
from tests.support.processes import Cluster, TaskProcess, run_function, run_in_turn, started, wait_for_step
from tests.support.static_store import static_store

TARGET = "tests.support.data_functions:trained"
# The last batch has one example, fewer than replicas.
DATA = {"count": 193, "batch_size": 32, "epochs": 3}
NUM_STEPS = 3 * 7
SLOW = pytest.mark.slow


@functools.cache
def on_one_device(keras: str, kind: str, folder: str | None) -> dict[str, np.ndarray[Any, Any]]:
    [task] = run_function(TARGET, Cluster(keras=keras), kind=kind, folder=folder, **DATA)
    return task.arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("parquet")
    write_parquet(folder, DATA["count"])
    recipe = batches("parquet", str(folder), count=DATA["count"], batch_size=DATA["batch_size"])
    assert num_lanes(recipe) > 1
    return str(folder)


@pytest.mark.exhaustive(
    "3", "mirrored", covered_by="[arrays-…]; tests/data/sources; [arrays-multi_worker_mirrored-2-keras3]"
)
@pytest.mark.parametrize(
    ("kind", "cluster"),
    [
        ("arrays", Cluster(strategy="multi_worker_mirrored", workers=2)),
        ("arrays", Cluster(strategy="mirrored", devices=2, keras="legacy")),
        ("arrays", Cluster(strategy="multi_worker_mirrored", workers=3, keras="legacy")),
        ("parquet", Cluster(strategy="multi_worker_mirrored", workers=3)),
        ("parquet", Cluster(strategy="mirrored", devices=4)),
        pytest.param("lists", Cluster(strategy="multi_worker_mirrored", workers=2), marks=pytest.mark.slow),
        ("lists", Cluster(strategy="mirrored", devices=2, keras="legacy")),
    ],
    ids=str,
)
def test_training_is_that_of_one_device(folder: str, kind: str, cluster: Cluster) -> None:
    place = None if kind == "arrays" else folder
    expected = on_one_device(cluster.keras, kind, place)
    for task in run_function(TARGET, cluster, kind=kind, folder=place, **DATA):
        for way in ("fit", "train_steps", "losses"):
            np.testing.assert_allclose(task.arrays[way], expected[way], atol=1e-5, err_msg=way)
        assert task.values["step"] == 2 * NUM_STEPS  # train_steps begins where fit has ended


@pytest.mark.exhaustive("parquet", covered_by="[arrays-3]")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "keras"), [("arrays", "3"), ("parquet", "legacy"), ("parquet", "3"), ("lists", "legacy")]
)
def test_workers_of_parameter_servers_share_each_epoch(tmp_path: Path, kind: str, keras: str) -> None:
    column = pa.array([[x] * (1 + x % 3) for x in range(100)] if kind == "lists" else range(100))
    table = pa.table({"number": column, "label": np.ones(100, "int64")})
    pq.write_table(table, tmp_path / "numbers.parquet", row_group_size=8)
    assert num_lanes(numbers("parquet", str(tmp_path), count=100, batch_size=12)) > 1
    cluster = Cluster(strategy="parameter_server", workers=2, ps=1, keras=keras)
    options = {"kind": kind, "folder": str(tmp_path), "count": 100, "batch_size": 12, "epochs": 3}
    functions = "tests.support.data_functions"
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "trained": (f"{functions}:trained_by_workers", options),
        "failing": (f"{functions}:failing_in_a_worker", {}),
    }
    found = run_in_turn(calls, cluster)
    [chief] = found["trained"]
    assert chief.arrays["seen"].tolist() == [3.0] * 100
    assert len(chief.values["history"]["val_accuracy"]) == 2
    too_few = "train_data are batches of 2 epochs, 18 steps, and 27 steps are to be trained; leave out"
    assert [text.partition(" batches(")[0] for text in chief.values["refused"]] == [too_few, too_few]
    assert found["failing"][0].values["found"] == "DataError('the examples cannot be read')"


@pytest.mark.slow
def test_steps_of_a_worker_that_died_are_given_to_another_one(tmp_path: Path) -> None:
    cluster = Cluster(strategy="parameter_server", workers=2, ps=1)
    options = {"kind": "arrays", "count": 100, "batch_size": 12, "epochs": 500, "steps_per_call": 30}
    target = "tests.support.data_functions:trained_by_workers"
    with started(target, cluster, storage=tmp_path, **options) as [chief, worker, *_]:
        wait_for_step(tmp_path, chief)
        worker.kill()
        time.sleep(0.5)
        worker.start()
        assert chief.process.wait(timeout=200) == 0, chief.text()
        values = json.loads((chief.folder / "values.json").read_text())
        with np.load(chief.folder / "arrays.npz") as arrays:
            seen = arrays["seen"]
    assert seen.min() >= 500
    # A worker may die between a step and its being counted.
    assert seen.sum() - 500 * 100 <= 12 * (values["steps_repeated"] + 1)


@pytest.mark.exhaustive("3", covered_by="[legacy]")
@pytest.mark.slow
@pytest.mark.parametrize("keras", ["legacy", "3"])
def test_evaluator_evaluates_each_example_of_batches(keras: str, tmp_path: Path) -> None:
    cluster = Cluster(strategy="parameter_server", workers=1, ps=1, keras=keras, evaluator=True)
    target, options = "tests.support.data_functions:evaluated_beside", {"evaluator": "true"}
    with started(target, cluster, storage=tmp_path, job_options=options) as [chief, evaluator, *_]:
        assert chief.process.wait(timeout=120) == 0, chief.text()
        evaluator.process.send_signal(signal.SIGUSR2)  # what Command.FINISH does in a task
        assert evaluator.process.wait(timeout=60) == 0, evaluator.text()
        values = json.loads((evaluator.folder / "values.json").read_text())
    assert values["found"][-1] == pytest.approx(values["loss"], rel=1e-5)


@pytest.mark.slow
def test_resumed_run_needs_the_batches_that_it_began_with(tmp_path: Path) -> None:
    """Otherwise examples would be trained on twice, or never, and nobody would know."""
    message = "train_data are other batches than those that checkpoint "

    def run(attempt: int, function: str, **arguments: Any) -> dict[str, Any]:
        target = f"tests.support.data_functions:{function}"
        [task] = run_function(target, Cluster(), storage=tmp_path / function, attempt=attempt, **arguments)
        assert all(text.startswith(message) for text in task.values["refused"])
        return task.values

    fits = [run(attempt, "trained_on_seed", seed=seed) for attempt, seed in enumerate((1, 2))]
    assert [len(values["refused"]) for values in fits] == [0, 1]
    # The second loop is the one that the checkpoint was written in.
    asked = [[(1, 5), (2, 4)], [(1, 5), (3, 9)], [(1, 5), (2, 9)]]
    loops = [run(attempt, "looped_on_seeds", loops=loops) for attempt, loops in enumerate(asked)]
    assert [(len(values["refused"]), values["seen"]) for values in loops] == [(0, 9.0), (1, 9.0), (0, 14.0)]


@pytest.mark.slow
def test_workers_with_different_data_are_named(tmp_path: Path) -> None:
    cluster = Cluster(strategy="multi_worker_mirrored", workers=2)
    functions = "tests.support.data_functions"
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "arrays": (f"{functions}:different_data", {}),
        "files": (f"{functions}:different_files", {"folder": str(tmp_path)}),
    }
    found = run_in_turn(calls, cluster)
    for task in found["arrays"]:
        assert task.values["error"].startswith("UnsupportedError: worker/1 has other batches than the others")
    for task in found["files"]:
        told, own = task.values["told"], f"{tmp_path}/{task.name}"
        differs = (
            "of worker/1 differs from the other workers' in name, size or content; give each worker the same"
        )
        assert told["alike"] == ""
        assert told["content"].startswith(f"UnsupportedError: {own}/content/part-1.parquet {differs}")
        assert told["size"].startswith(f"UnsupportedError: {own}/size/part-0.parquet {differs}")
        counts = "the workers have not as many files of the source: worker/0 2, worker/1 3; give each worker"
        assert told["count"].startswith(f"UnsupportedError: {counts}")


SLOWED = "tests.support.data_functions:slowed_by_its_data"


@functools.cache
def slowed(cluster: Cluster, is_static: bool) -> dict[str, list[TaskProcess]]:
    calls = {"by batch": (SLOWED, {"is_static": is_static})}
    by_example = {"by example": (SLOWED, {"is_static": False, "by_example": True})}
    return run_in_turn(calls | (by_example if cluster.workers > 1 else {}), cluster)


@pytest.mark.exhaustive(
    "1", "batches of one size", "mirrored", covered_by="the same with 2 workers; […-batches of any size]"
)
@pytest.mark.slow
@pytest.mark.parametrize("is_static", [False, True], ids=["batches of any size", "batches of one size"])
@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(strategy="multi_worker_mirrored", workers=2),
        Cluster(strategy="mirrored", devices=2, keras="legacy"),
        Cluster(),
    ],
    ids=str,
)
def test_training_that_waits_for_its_data_says_so(cluster: Cluster, is_static: bool) -> None:
    noting, waits, rates = [], [], []
    for task in slowed(cluster, is_static)["by batch"]:
        noting += [note for note in task.values["notes"] if note.startswith(f"{task.name} waited for data ")]
        waits += [values["input_wait"] for values in task.values["recorded"]]
        rates += [values["examples_per_s"] for values in task.values["recorded"]]
    # Not each task, nor all the time: who comes later keeps the other waiting in the all-reduce.
    assert noting
    assert 0.3 < max(waits) <= 1.0
    assert 0 < max(rates)


@pytest.mark.slow
def test_workers_that_map_their_own_examples_say_how_long_they_wait() -> None:
    tasks = slowed(Cluster(strategy="multi_worker_mirrored", workers=2), False)["by example"]
    recorded = [values for task in tasks for values in task.values["recorded"]]
    assert 0.3 < max(values["input_wait"] for values in recorded) <= 1.0
    assert max(values["examples_per_s"] for values in recorded) > 0


@pytest.mark.slow
def test_with_deterministic_operations_only_the_examples_are_measured() -> None:
    [task] = run_function(SLOWED, Cluster(), is_static=True, environ={"TF_DETERMINISTIC_OPS": "1"})
    assert not [note for note in task.values["notes"] if "waited for data" in note]
    assert {"input_wait" in values for values in task.values["recorded"]} == {False}
    assert max(values["examples_per_s"] for values in task.values["recorded"]) > 0


@pytest.mark.slow
def test_workers_list_a_folder_of_a_store_together(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as one worker does, and train as from files."""
    expected = on_one_device("3", "parquet", folder)
    with static_store(Path(folder).parent) as store:
        for name, value in s3_environ(store.endpoint).items():
            monkeypatch.setenv(name, value)
        lists = []
        for workers in (1, 2):
            cluster = Cluster(strategy="multi_worker_mirrored", workers=workers)
            place = f"s3://{Path(folder).name}"
            for task in run_function(TARGET, cluster, kind="parquet", folder=place, **DATA):
                np.testing.assert_allclose(task.arrays["fit"], expected["fit"], atol=1e-5)
            lists.append(store.take_counts()["LIST"])
    assert lists[0] == lists[1] > 0
