"""ParameterServer with real servers: what is counted, stored, evaluated, and what a death costs."""

from __future__ import annotations

import io
import json
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import Cluster, run_function, started, wait_for_step

FUNCTIONS = "tests.support.parameter_server_functions"
SHARDED = {"partitioner": "fixed_shards:2"}
KINDS = {
    "keras 3": ("3", {}),
    "tf_keras": ("legacy", {}),
    "tf_keras sharded": ("legacy", SHARDED),
}
EPOCHS, STEPS = 2, 60


def cluster(keras: str = "3", *, workers: int = 2, ps: int = 2, evaluator: bool = False) -> Cluster:
    return Cluster(strategy="parameter_server", workers=workers, ps=ps, keras=keras, evaluator=evaluator)


@pytest.mark.parametrize(("keras", "options"), KINDS.values(), ids=KINDS.keys())
def test_fit_counts_each_step_and_evaluates_each_example_once(keras: str, options: dict[str, str]) -> None:
    [chief] = run_function(
        f"{FUNCTIONS}:fit", cluster(keras), epochs=EPOCHS, steps_per_epoch=STEPS, job_options=options
    )
    values = chief.values
    assert values["step"] == values["iterations"] == EPOCHS * STEPS
    assert values["steps_repeated"] == 0
    assert values["epochs"] == [0, 1]
    assert values["batches"][-1] == STEPS - 1
    history = values["history"]
    assert set(history) == {"loss", "rmse", "val_loss", "val_rmse"}
    assert history["rmse"][-1] == pytest.approx(history["loss"][-1] ** 0.5, rel=1e-5)
    # The last validation's value is of the final weights; 333 examples are 7 batches of at most 50.
    assert history["val_rmse"][-1] == pytest.approx(values["val_rmse_by_hand"], rel=1e-5)
    assert history["val_rmse"][-1] < history["val_rmse"][0]


def test_a_resumed_run_may_have_another_number_of_ps(tmp_path: Path) -> None:
    def train(*, ps: int, attempt: int, options: dict[str, str]) -> Any:
        [chief] = run_function(
            f"{FUNCTIONS}:weights",
            cluster("legacy", ps=ps),
            storage=tmp_path,
            attempt=attempt,
            epochs=2,
            job_options=options,
        )
        return chief

    first = train(ps=2, attempt=0, options=SHARDED)
    # Nothing is left to train, so these are the restored values.
    again = train(ps=3, attempt=1, options={"partitioner": "fixed_shards:3"})
    whole = train(ps=1, attempt=2, options={})
    assert (first.values["num_parts"], again.values["num_parts"], whole.values["num_parts"]) == (9, 13, 5)
    for one in (again, whole):
        assert shapes(one) == shapes(first)
        assert one.values["step"] == 20
        for key, array in arrays(first).items():
            np.testing.assert_array_equal(arrays(one)[key], array, err_msg=key)


def shapes(task: Any) -> list[tuple[str, list[int]]]:
    return [(entry["key"], entry["shape"]) for entry in json.loads(task.values["index"])]


def arrays(task: Any) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(io.BytesIO(task.arrays["npz"].tobytes())) as found:
        return dict(found)


@pytest.mark.parametrize(("keras", "options"), [("3", {}), ("legacy", SHARDED)], ids=["keras 3", "sharded"])
def test_evaluator_evaluates_the_last_checkpoint(keras: str, options: dict[str, str], tmp_path: Path) -> None:
    with started(
        f"{FUNCTIONS}:fit",
        cluster(keras, evaluator=True),
        storage=tmp_path,
        job_options={**options, "evaluator": "true"},
    ) as [chief, evaluator, *_]:
        assert chief.process.wait(timeout=120) == 0, chief.text()
        evaluator.process.send_signal(signal.SIGUSR2)  # what Order.FINISH does in a task
        assert evaluator.process.wait(timeout=60) == 0, evaluator.text()
        trained = json.loads((chief.folder / "values.json").read_text())
        followed = json.loads((evaluator.folder / "values.json").read_text())
    assert set(trained["history"]) == {"loss", "rmse"}  # the evaluator's work is not done twice
    assert followed["step"] == trained["step"] == 120
    assert followed["history"]["val_rmse"][-1] == pytest.approx(trained["val_rmse_by_hand"], rel=1e-5)


def test_train_steps_and_the_bare_coordinator() -> None:
    [chief] = run_function(f"{FUNCTIONS}:loop", cluster(), num_steps=203, steps_per_call=20)
    values = chief.values
    assert values["step"] == 203
    assert values["calls"] == 203 + len(values["bare"])
    assert values["steps_repeated"] == 0
    assert values["last"]["rows"] == 8.0
    np.testing.assert_allclose(chief.arrays["weight"], [1.0, -2.0], atol=0.05)


def test_custom_loop_is_restored_where_it_was_saved(tmp_path: Path) -> None:
    options = {"checkpoint_every": "50"}

    def train(attempt: int, num_steps: int) -> Any:
        [chief] = run_function(
            f"{FUNCTIONS}:loop",
            cluster(workers=1, ps=1),
            storage=tmp_path,
            attempt=attempt,
            num_steps=num_steps,
            steps_per_call=20,
            job_options=options,
        )
        return chief.values

    assert train(0, 120)["restored"] is None
    resumed = train(1, 200)
    assert resumed["restored"] == 120
    assert resumed["calls"] == 200 + len(resumed["bare"])


def test_killed_worker_costs_no_step(tmp_path: Path) -> None:
    with started(f"{FUNCTIONS}:fit", cluster(), storage=tmp_path, epochs=3, steps_per_epoch=1500) as [
        chief,
        worker,
        *_,
    ]:
        wait_for_step(tmp_path, chief)
        worker.kill()
        time.sleep(0.5)
        worker.start()
        assert chief.process.wait(timeout=200) == 0, chief.text()
        values = json.loads((chief.folder / "values.json").read_text())
    assert values["step"] == 4500
    # A worker may die between a step and its being counted.
    assert abs(values["iterations"] - 4500 - values["steps_repeated"]) <= 1
    assert values["history"]["val_rmse"][-1] == pytest.approx(values["val_rmse_by_hand"], rel=1e-5)


@pytest.mark.parametrize(("keras", "options"), [("3", {}), ("legacy", SHARDED)], ids=["keras 3", "sharded"])
def test_resumes_inside_an_epoch(keras: str, options: dict[str, str], tmp_path: Path) -> None:
    every = {**options, "checkpoint_every": "25"}
    with started(f"{FUNCTIONS}:fit", cluster(keras), storage=tmp_path, job_options=every, fail_at=85) as [
        first,
        *_,
    ]:
        assert first.process.wait(timeout=120) == 1, first.text()
    [chief] = run_function(f"{FUNCTIONS}:fit", cluster(keras), storage=tmp_path, attempt=1, job_options=every)
    values = chief.values
    assert values["step"] == values["iterations"] == EPOCHS * STEPS
    assert values["epochs"] == [1]
    assert values["batches"][0] >= 15  # the checkpoint of step 75 is the newest
    assert len(values["history"]["loss"]) == 2
    assert values["history"]["val_rmse"][-1] == pytest.approx(values["val_rmse_by_hand"], rel=1e-5)


def test_order_to_save_commits_inside_an_epoch(tmp_path: Path) -> None:
    with started(f"{FUNCTIONS}:fit", cluster(), storage=tmp_path, epochs=1, steps_per_epoch=1_000_000) as [
        chief,
        *_,
    ]:
        wait_for_step(tmp_path, chief)
        chief.process.send_signal(signal.SIGHUP)  # what Order.SAVE does in a task
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob("_COMMITTED")):
            assert time.monotonic() < deadline, chief.text()
            time.sleep(0.05)
        [state] = [json.loads(path.read_text()) for path in tmp_path.rglob("state.json")]
    assert state["step"] == state["step_in_epoch"] > 0


def test_own_train_steps_logs_are_means_and_a_callback_stops_inside_an_epoch() -> None:
    [chief] = run_function(f"{FUNCTIONS}:own_train_step", cluster(workers=1, ps=1))
    assert set(chief.values["history"]) == {"my_loss", "two"}
    assert chief.values["history"]["two"] == [2.0]
    assert 20 < chief.values["step"] < 100_000


def test_shards_of_layers_of_one_name_are_kept_apart() -> None:
    [chief] = run_function(
        f"{FUNCTIONS}:shards_of_one_name", cluster("legacy", workers=1, ps=2), job_options=SHARDED
    )
    assert len(set(chief.values["names"])) < 4  # which is why names alone would not do
    assert chief.values["shapes"] == [[6, 3], [10, 2]]


def test_error_of_a_step_is_raised_in_the_chief() -> None:
    with pytest.raises(AssertionError, match="the user's own check"):
        run_function(f"{FUNCTIONS}:failing_step", cluster(workers=1, ps=1))


def test_mistakes_are_answered_before_tensorflow_fails() -> None:
    [chief] = run_function(f"{FUNCTIONS}:mistakes", cluster(workers=1, ps=1))
    wanted = {
        "dataset": "train_data is _BatchDataset; parameter_server needs a function",
        "dataset made outside": "uses a data set that was made outside of it",
        "no steps_per_epoch": "ctx.fit needs steps_per_epoch under parameter_server",
        "no data set": "the train_data function returned list; return a tf.data.Dataset",
        "outside the scope": "was made outside the strategy",
        "not compiled": "is not compiled; call model.compile",
        "endless validation": "validation_data never ends",
        "validation data set": "validation_data is _BatchDataset; parameter_server needs a function",
        "variable outside": "variable outside:0 was made outside of the strategy",
        "no scalars": "step_fn returned SymbolicTensor; return a dict of scalars",
        "plain fit": "Keras 3's model.fit cannot train under parameter_server",
    }
    assert {name: message for name, message in chief.values.items() if wanted[name] not in message} == {}
    assert chief.values.keys() == wanted.keys()


def test_keras_3_with_a_partitioner_is_refused() -> None:
    with pytest.raises(AssertionError, match="of Keras 3, which has no sharded variables"):
        run_function(f"{FUNCTIONS}:fit", cluster(workers=1, ps=1), job_options=SHARDED)
