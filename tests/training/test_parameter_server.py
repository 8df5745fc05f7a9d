"""ParameterServer with real servers: what is counted, stored, evaluated, and what a death costs."""

from __future__ import annotations

import functools
import io
import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.processes import (
    PATIENCE,
    Cluster,
    TaskProcess,
    free_address,
    run_function,
    run_in_turn,
    started,
    tell_workers,
    wait_for_step,
)

FUNCTIONS = "tests.support.parameter_server_functions"
SHARDED = {"partitioner": "fixed_shards:2"}
KERAS_3_OR_SHARDED = [pytest.param("3", {}, id="keras 3"), pytest.param("legacy", SHARDED, id="sharded")]
EPOCHS, STEPS = 2, 60
TOO_SHORT = ("no steps", "too short", "too short, as it turns out")
WEIGHTS = ("sample_weight", "class_weight")


def cluster(keras: str = "3", *, workers: int = 2, ps: int = 2, evaluator: bool = False) -> Cluster:
    return Cluster(strategy="parameter_server", workers=workers, ps=ps, keras=keras, evaluator=evaluator)


@pytest.mark.exhaustive("tf_keras", "tf_keras sharded", covered_by="the same with Keras 3")
@pytest.mark.parametrize(
    ("keras", "options"),
    [("3", {}), ("legacy", {}), ("legacy", SHARDED)],
    ids=["keras 3", "tf_keras", "tf_keras sharded"],
)
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
    # Not less than at first: on a busy machine a worker's gradients are for weights of long ago.
    assert history["val_rmse"][-1] != history["val_rmse"][0]


@pytest.mark.exhaustive("legacy", "2", covered_by="[3-1]; test_recipes.py: what 2 workers share")
@pytest.mark.slow
@pytest.mark.parametrize(("keras", "workers"), [("3", 1), ("3", 2), ("legacy", 1)])
def test_losses_that_own_steps_return_are_reported(keras: str, workers: int) -> None:
    if (keras, workers) == ("3", 1):
        chief = chiefs()["returned_losses"]
    else:
        [chief] = run_function(f"{FUNCTIONS}:returned_losses", cluster(keras, workers=workers, ps=1))
    for found in chief.values.values():
        expected = found["expected"]
        if workers == 1:  # of several, any may train the last batch
            assert found["history"]["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["history"]["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)
        assert found["evaluated"]["loss"] == pytest.approx(expected["val_loss"], rel=1e-5)
    ratings = chief.values["Ratings"]
    assert ratings["history"]["total_loss"] == ratings["history"]["loss"]
    assert ratings["evaluated"]["error"] == pytest.approx(ratings["error"], rel=1e-5)
    assert ratings["evaluated by workers"]["error"] == pytest.approx(ratings["error of workers"], rel=1e-5)
    assert set(chief.values["LossAlone"]["evaluated"]) == {"loss"}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, TaskProcess], Path]:
    """What a chief does with variables in shards on 2 parameter servers, and where it has stored them."""
    storage = tmp_path_factory.mktemp("sharded")
    calls = {
        "weights": (f"{FUNCTIONS}:weights", {"epochs": 2}),
        "one name": (f"{FUNCTIONS}:shards_of_one_name", {}),
        "refused": (f"{FUNCTIONS}:refused_where_sharded", {}),
    }
    where = cluster("legacy", workers=1, ps=2)
    found = run_in_turn(calls, where, storage=storage, job_options=SHARDED)
    return {name: chief for name, [chief] in found.items()}, storage


@pytest.mark.exhaustive("more ps", "whole", covered_by="[other shards]")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ps", "options", "num_parts"),
    [(1, {"partitioner": "fixed_shards:3"}, 13), (3, {"partitioner": "fixed_shards:3"}, 13), (1, {}, 5)],
    ids=["other shards", "more ps", "whole"],
)
def test_a_resumed_run_may_have_another_number_of_ps(
    sharded: tuple[dict[str, TaskProcess], Path],
    tmp_path: Path,
    ps: int,
    options: dict[str, str],
    num_parts: int,
) -> None:
    first = sharded[0]["weights"]
    shutil.copytree(sharded[1], tmp_path, dirs_exist_ok=True)
    # Nothing is left to train, so these are the restored values.
    [again] = run_function(
        f"{FUNCTIONS}:weights",
        cluster("legacy", workers=1, ps=ps),
        storage=tmp_path,
        attempt=1,
        epochs=2,
        job_options=options,
    )
    assert (first.values["num_parts"], again.values["num_parts"]) == (9, num_parts)
    assert shapes(again) == shapes(first)
    assert again.values["step"] == 20
    for key, array in arrays(first).items():
        np.testing.assert_array_equal(arrays(again)[key], array, err_msg=key)


@pytest.mark.slow
def test_shards_of_layers_of_one_name_are_kept_apart(sharded: tuple[dict[str, TaskProcess], Path]) -> None:
    values = sharded[0]["one name"].values
    assert len(set(values["names"])) < 4  # which is why names alone would not do
    assert values["shapes"] == [[6, 3], [10, 2]]


@pytest.mark.slow
def test_keras_3_and_updates_of_several_batches_are_refused(
    sharded: tuple[dict[str, TaskProcess], Path],
) -> None:
    told = sharded[0]["refused"].values
    assert "of Keras 3, which has no sharded variables" in told["keras 3"]
    assert "ctx.fit got accumulate=2, and under parameter_server each worker updates" in told["accumulate"]


def shapes(task: Any) -> list[tuple[str, list[int]]]:
    return [(entry["key"], entry["shape"]) for entry in json.loads(task.values["index"])]


def arrays(task: Any) -> dict[str, np.ndarray[Any, Any]]:
    with np.load(io.BytesIO(task.arrays["npz"].tobytes())) as found:
        return dict(found)


@pytest.mark.exhaustive("sharded", covered_by="[keras 3]")
@pytest.mark.slow
@pytest.mark.parametrize(("keras", "options"), KERAS_3_OR_SHARDED)
def test_evaluator_evaluates_the_last_checkpoint(keras: str, options: dict[str, str], tmp_path: Path) -> None:
    with started(
        f"{FUNCTIONS}:fit",
        cluster(keras, workers=1, ps=1, evaluator=True),
        storage=tmp_path,
        job_options={**options, "evaluator": "true"},
    ) as [chief, evaluator, *_]:
        assert chief.process.wait(timeout=120) == 0, chief.text()
        evaluator.process.send_signal(signal.SIGUSR2)  # what Command.FINISH does in a task
        assert evaluator.process.wait(timeout=60) == 0, evaluator.text()
        trained = json.loads((chief.folder / "values.json").read_text())
        followed = json.loads((evaluator.folder / "values.json").read_text())
    assert set(trained["history"]) == {"loss", "rmse"}  # the evaluator's work is not done twice
    assert followed["step"] == trained["step"] == 120
    assert followed["history"]["val_rmse"][-1] == pytest.approx(trained["val_rmse_by_hand"], rel=1e-5)


@pytest.fixture(scope="module")
def looped(tmp_path_factory: pytest.TempPathFactory) -> tuple[TaskProcess, Path]:
    """A custom loop of 203 steps, and where it has stored its checkpoints."""
    storage = tmp_path_factory.mktemp("looped")
    return loop(cluster(), storage, attempt=0, num_steps=203), storage


def loop(where: Cluster, storage: Path, *, attempt: int, num_steps: int) -> TaskProcess:
    [chief] = run_function(
        f"{FUNCTIONS}:loop",
        where,
        storage=storage,
        attempt=attempt,
        num_steps=num_steps,
        steps_per_call=20,
        job_options={"checkpoint_every": "50"},
    )
    return chief


@pytest.mark.slow
def test_train_steps_and_the_bare_coordinator(looped: tuple[TaskProcess, Path]) -> None:
    chief, values = looped[0], looped[0].values
    assert values["restored"] is None
    assert values["step"] == 203
    assert values["calls"] == 203 + len(values["bare"])
    assert values["steps_repeated"] == 0
    assert values["last"]["rows"] == 8.0
    assert (values["batches"], values["evaluated"]) == (16, pytest.approx(1.0))  # of 500 rows each, by 63
    np.testing.assert_allclose(chief.arrays["weight"], [1.0, -2.0], atol=0.05)


@pytest.mark.slow
def test_custom_loop_is_restored_where_it_was_saved(looped: tuple[TaskProcess, Path]) -> None:
    values = loop(cluster(workers=1, ps=1), looped[1], attempt=1, num_steps=280).values
    assert values["restored"] == 203
    assert values["calls"] == 280 + len(values["bare"])


@pytest.mark.slow
def test_killed_worker_costs_no_step(tmp_path: Path) -> None:
    with started(f"{FUNCTIONS}:fit", cluster(ps=1), storage=tmp_path, epochs=2, steps_per_epoch=1500) as [
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
    assert values["step"] == 3000
    # A worker may die between a step and its being counted.
    assert abs(values["iterations"] - 3000 - values["steps_repeated"]) <= 1
    assert values["history"]["val_rmse"][-1] == pytest.approx(values["val_rmse_by_hand"], rel=1e-5)


@pytest.mark.exhaustive("sharded", covered_by="[keras 3]")
@pytest.mark.slow
@pytest.mark.parametrize(("keras", "options"), KERAS_3_OR_SHARDED)
def test_resumes_inside_an_epoch(keras: str, options: dict[str, str], tmp_path: Path) -> None:
    where, every = cluster(keras, workers=1, ps=1), {**options, "checkpoint_every": "25"}
    with started(f"{FUNCTIONS}:fit", where, storage=tmp_path, job_options=every, fail_at=85) as [first, *_]:
        assert first.process.wait(timeout=120) == 1, first.text()
    [chief] = run_function(f"{FUNCTIONS}:fit", where, storage=tmp_path, attempt=1, job_options=every)
    values = chief.values
    assert values["step"] == values["iterations"] == EPOCHS * STEPS
    assert values["epochs"] == [1]
    assert values["batches"][0] >= 15  # the checkpoint of step 75 is the newest
    assert len(values["history"]["loss"]) == 2
    assert values["history"]["val_rmse"][-1] == pytest.approx(values["val_rmse_by_hand"], rel=1e-5)


@pytest.mark.exhaustive("legacy", covered_by="[3]; test_resumes_inside_an_epoch")
@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_metrics_of_an_epoch_that_was_cut_are_of_the_whole_epoch(keras: str, tmp_path: Path) -> None:
    where, every = cluster(keras, workers=1, ps=1), {"checkpoint_every": "25"}
    target, given = f"{FUNCTIONS}:cut_epoch", {"storage": tmp_path, "job_options": every}
    with started(target, where, **given) as [chief, *_]:
        assert chief.process.wait(timeout=120) != 0, chief.text()
    [chief] = run_function(target, where, attempt=1, **given)
    history = chief.values["history"]
    assert history.keys() == chief.values["expected"].keys()
    for name, value in chief.values["expected"].items():
        assert history[name] == pytest.approx([value] * 3, rel=1e-5), name


@pytest.mark.slow
def test_command_to_save_commits_inside_an_epoch(tmp_path: Path) -> None:
    where = cluster(workers=1, ps=1)
    with started(f"{FUNCTIONS}:fit", where, storage=tmp_path, epochs=1, steps_per_epoch=1_000_000) as [
        chief,
        *_,
    ]:
        wait_for_step(tmp_path, chief)
        chief.process.send_signal(signal.SIGHUP)  # what Command.SAVE does in a task
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob("_COMMITTED")):
            assert time.monotonic() < deadline, chief.text()
            time.sleep(0.05)
        [state] = [json.loads(path.read_text()) for path in tmp_path.rglob("state.json")]
    assert state["step"] == state["step_in_epoch"] > 0


@functools.cache
def chiefs() -> dict[str, TaskProcess]:
    """What one chief finds in calls that need no other cluster; the last one breaks it."""
    names = ("mistakes", "batch_hooks", "returned_losses", "keras_calls", "ends_of_data", "failing_step")
    found = run_in_turn({name: (f"{FUNCTIONS}:{name}", {}) for name in names}, cluster(workers=1, ps=1))
    return {name: chief for name, [chief] in found.items()}


@pytest.mark.slow
def test_batch_hooks_and_logs_of_an_own_train_step_are_those_of_plain_keras() -> None:
    values = chiefs()["batch_hooks"].values
    expected, found = values["expected"], values["found"]
    assert found["calls"] == expected["calls"]
    assert found["printed"] == expected["printed"]
    assert values["steps"] == len(expected["printed"]) == 18  # a hook stops it inside an epoch
    for name in ("weights", "own"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)
    assert set(found["history"]) == {"own", "val_own"}
    for name, value in found["history"].items():
        assert value == pytest.approx(expected["history"][name], rel=1e-5)


@pytest.mark.slow
def test_data_end_an_epoch_and_one_worker_trains_as_one_device() -> None:
    values = chiefs()["ends_of_data"].values
    assert values["expected"][0] == 16
    for name, found in values["found"].items():
        assert found == pytest.approx(values["expected"], rel=1e-5), name
    assert (
        sum("raydist counted 8 batches in one pass over train_data" in note for note in values["notes"]) == 1
    )


@pytest.mark.slow
def test_error_of_a_step_is_raised_in_the_chief() -> None:
    assert "the user's own check" in chiefs()["failing_step"].values["error"]


@pytest.mark.slow
def test_data_without_a_batch_are_named() -> None:
    assert chiefs()["failing_step"].values["empty"].startswith("UnsupportedError: train_data has no batches:")


@pytest.mark.slow
def test_mistakes_are_answered_before_tensorflow_fails() -> None:
    values = chiefs()["mistakes"].values
    wanted = {
        "no data": "train_data is list; parameter_server needs a tf.data.Dataset, a function",
        "dataset of Python": "train_data is a dataset that runs Python (from_generator, py_function",
        "dataset of 2 GB": "train_data is a dataset that holds more than 2 GB in its graph, which no worker",
        "dataset made outside": "uses a dataset that was made outside of it",
        "no steps_per_epoch": "ctx.fit needs steps_per_epoch, as train_data never ends",
        "no dataset": "the train_data function returned list; return a tf.data.Dataset",
        "outside the scope": "was made outside the strategy",
        "not compiled": "is not compiled; call model.compile",
        "averages that are written": "ema_overwrite_frequency=2, which Keras 3 cannot do under",
        "endless validation": "validation_data never ends",
        "validation dataset": "validation_data is a dataset that runs Python",
        "variable outside": "variable outside:0 was made outside of the strategy",
        "hook at test batches": "callback AtTestBatches has on_test_batch_end, and under parameter_server",
        "no scalars": "returned SymbolicTensor; return a dict of scalars",
    }
    assert {name: message for name, message in values.items() if wanted[name] not in message} == {}
    assert values.keys() == wanted.keys()


@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
def test_kerass_own_calls_evaluate_on_the_chief(keras: str) -> None:
    """Each example counts once, and what cannot be is a sentence, after which the model works as before."""
    if keras == "3":
        chief = chiefs()["keras_calls"]
    else:
        [chief] = run_function(f"{FUNCTIONS}:keras_calls", cluster(keras, workers=1, ps=1))
    answers = chief.values
    refused = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
    for name in answers.keys() - refused.keys():
        value, by_hand = answers[name]
        assert value == pytest.approx(by_hand, rel=1e-5, abs=1e-6), name
    assert "give the dataset that was distributed" in refused["distributed"]
    if keras == "3":  # whose `fit` is that of ctx.fit
        assert refused.keys() == {"distributed", "distributed validation"}
        assert "validation_data is DistributedDataset" in refused["distributed validation"]
        return
    assert refused.keys() == {"distributed", "distributed validation", "train_on_batch", *WEIGHTS, *TOO_SHORT}
    assert refused["distributed validation"] == refused["distributed"]
    for name in WEIGHTS:
        assert refused[name].startswith(f"model.fit takes no {name} under parameter_server")
    assert refused["no steps"].startswith("model.fit needs steps_per_epoch under parameter_server")
    assert "it needs 16 batches (2 epochs of 8 steps)" in refused["too short"]
    assert "it needs 30 batches (2 epochs of 15 steps)" in refused["too short, as it turns out"]
    assert "cannot train under parameter_server" in refused["train_on_batch"]


@pytest.mark.slow
def test_workers_come_and_go_while_training_continues(tmp_path: Path) -> None:
    """A second worker comes, leaves, comes back at another address, and dies, as the run tells the chief."""
    begun = tmp_path / "begun"
    phases = [(1, "batches"), (2, "batches"), (1, "batches"), (2, "function"), (2, "function")]

    def wait(number: int) -> None:
        deadline = time.monotonic() + 120 * PATIENCE
        while not Path(f"{begun}{number}").exists():
            assert chief.process.poll() is None, chief.text()
            assert time.monotonic() < deadline, chief.text()
            time.sleep(0.02)

    with started(
        f"{FUNCTIONS}:come_and_go",
        cluster(ps=1),
        storage=tmp_path / "run",
        late=["worker/1"],
        phases=phases,
        begun=str(begun),
    ) as tasks:
        chief, _, second, _ = tasks
        second.start()
        wait(0)
        tell_workers(tasks, "worker/0", "worker/1")
        wait(1)
        tell_workers(tasks, "worker/0")
        wait(2)
        second.kill()
        second.request["addresses"]["worker/1"] = free_address()
        second.start()
        tell_workers(tasks, "worker/0", "worker/1")
        wait(4)
        second.kill()
        tell_workers(tasks, "worker/0")
        assert chief.process.wait(timeout=120 * PATIENCE) == 0, chief.text()
        found = json.loads((chief.folder / "values.json").read_text())["phases"]
    assert [one["repeated"] for one in found[:4]] == [0] * 4  # it had left before it was killed
    assert min(found[3]["steps"]) > 0
    assert [one["batches"] for one in found[:4]] == [8 * num_workers for num_workers, _ in phases[:4]]
    for one, (_, kind) in zip(found, phases, strict=True):
        assert sum(one["steps"]) == one["wanted"]
        assert sum(one["seen"]) == 4 * (one["wanted"] + one["repeated"])
        if kind == "batches":
            assert set(one["seen"]) == {1}
        else:
            assert min(one["seen"]) > 0
