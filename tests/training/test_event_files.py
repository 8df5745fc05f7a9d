"""What tasks write for TensorBoard, read back by TensorBoard's own readers."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.storage.run_storage import RunStorage, open_run
from tests.support.event_files import (
    Scalars,
    assignment_of,
    histograms_of,
    layers_of,
    params_of,
    scalars_of,
)
from tests.support.late import LateModule

model_summaries = LateModule("raydist.training.reporting.model_summaries")
tensorboard = LateModule("raydist.training.reporting.tensorboard")
# As TensorBoard lists them.
TRAIN, VALIDATION, EVALUATOR = "chief/train", "chief/validation", "evaluator"


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> RunStorage:
    uri: str = str(tmp_path / "runs") if request.param == "folder" else request.getfixturevalue("s3_uri")
    return open_run(uri, run="digits-1")


def open_writer(
    storage: RunStorage, task: str = "worker/0", *, now_s: list[float] | None = None, **given: Any
) -> Any:
    clock = (lambda: now_s[0]) if now_s else (lambda: 0.0)
    writer = tensorboard.TensorBoardWriter.open(storage, assignment_of(task, **given), clock=clock)
    assert writer is not None
    return writer


def append(writer: Any, step: int, restored_step: int = 0, **values: float) -> None:
    writer.append(
        values, step=step, of_epoch=True, is_running=False, restored_step=restored_step, wall_time=1e9 + step
    )


@pytest.mark.slow
def test_values_have_the_tags_of_keras(storage: RunStorage, tmp_path: Path) -> None:
    writer = open_writer(storage)
    append(writer, 10, loss=0.5, val_loss=0.75)
    common = {"step": 10, "restored_step": 0, "wall_time": 1e9}
    writer.append({"loss": 0.625}, of_epoch=True, is_running=True, **common)
    writer.append({"norm": 3.0, "val_norm": 4.0}, of_epoch=False, is_running=False, **common)
    writer.flush()
    assert scalars_of(storage, TRAIN, tmp_path) == {
        "epoch_loss": [(10, 0.5)],
        "batch_loss": [(10, 0.625)],
        "norm": [(10, 3.0)],
        "val_norm": [(10, 4.0)],
    }
    assert scalars_of(storage, VALIDATION, tmp_path) == {"epoch_loss": [(10, 0.75)]}


def test_evaluator_has_a_folder_of_its_own(storage: RunStorage, tmp_path: Path) -> None:
    writer = open_writer(storage, "evaluator/0")
    append(writer, 10, val_loss=0.5, evaluator_lag_steps=2.0)
    writer.flush()
    assert storage.list_names(storage.tensorboard) == [EVALUATOR]
    assert scalars_of(storage, EVALUATOR, tmp_path) == {
        "epoch_loss": [(10, 0.5)],
        "evaluator_lag_steps": [(10, 2.0)],
    }


def test_histograms_are_those_of_the_histograms_plugin(storage: RunStorage, tmp_path: Path) -> None:
    writer = open_writer(storage)
    common = {"restored_step": 0, "wall_time": 1e9}
    values = np.array([0.0, 0.1, 0.2, 3.0, np.nan, np.inf])
    writer.append_histograms({"dense/kernel": values, "dense/bias": np.zeros(4)}, step=10, **common)
    writer.append_histograms({"dense/kernel": 2 * values, "lost": np.full(3, np.nan)}, step=20, **common)
    writer.flush()
    found = histograms_of(storage, TRAIN, tmp_path)
    assert found.keys() == {"dense/kernel/histogram", "dense/bias/histogram"}
    first, second = found["dense/kernel/histogram"][10], found["dense/kernel/histogram"][20]
    assert (first.shape, first[0, 0], first[-1, 1]) == ((30, 3), 0.0, 3.0)
    assert [int(count) for count in first[:, 2]] == [1, 1, 1, *[0] * 26, 1]
    assert (second[-1, 1], second[:, 2].sum()) == (6.0, 4.0)
    assert found["dense/bias/histogram"][10][:, 2].sum() == 4.0


@pytest.mark.exhaustive("tf_keras", covered_by="the same with Keras 3")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_layers_are_those_of_the_graph_page(tmp_path: Path, library: str) -> None:
    keras = importlib.import_module(library)
    storage = open_run(str(tmp_path), run="digits-1")
    first = keras.Input((4,), name="first")
    left = keras.layers.Dense(2, name="left")(first)
    right = keras.layers.Dense(2, name="right")(first)
    both = keras.layers.Concatenate(name="both")([left, right])
    graph = model_summaries.graph_of(keras.Model(first, both))
    assert graph is not None
    writer = open_writer(storage)
    writer.append_graph(graph, step=0, restored_step=0, wall_time=1e9)
    writer.flush()
    inputs = layers_of(storage, TRAIN, tmp_path)
    assert {
        name.rpartition("/")[2]: [one.rpartition("/")[2] for one in found] for name, found in inputs.items()
    } == {
        **{"first": [], "left": ["first"], "right": ["first"]},
        "both": ["left", "right"],
    }


@pytest.mark.exhaustive("tf_keras", covered_by="the same with Keras 3")
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_model_without_a_graph_of_layers_has_none(library: str) -> None:
    keras = importlib.import_module(library)

    class Own(keras.Model):  # type: ignore[name-defined]
        def call(self, inputs: Any) -> Any:
            return inputs

    assert model_summaries.graph_of(Own()) is None


def test_worker_that_is_not_the_chief_writes_nothing(storage: RunStorage) -> None:
    assert tensorboard.TensorBoardWriter.open(storage, assignment_of("worker/1")) is None


@pytest.mark.parametrize(
    ("restored_step", "kept"),
    [(20, [(10, 1.0), (20, 2.0)]), (10, [(10, 1.0)]), (0, [])],
    ids=["checkpoint", "earlier checkpoint", "none"],
)
def test_steps_that_a_new_attempt_repeats_are_shown_once(
    storage: RunStorage, tmp_path: Path, restored_step: int, kept: Scalars
) -> None:
    first = open_writer(storage)
    for step in (10, 20, 30, 40):
        append(first, step, loss=step / 10)
        first.flush()
    second = open_writer(storage, attempt=1)
    append(second, 30, restored_step, loss=0.25)
    append(second, 40, restored_step, loss=0.125)
    second.flush()
    expected = {"epoch_loss": [*kept, (30, 0.25), (40, 0.125)]}
    assert scalars_of(storage, TRAIN, tmp_path) == expected


def test_params_are_those_of_the_hparams_plugin(storage: RunStorage, tmp_path: Path) -> None:
    params = {
        **{"learning_rate": 0.5, "epochs": 3, "name": "ä" * 200, "is_deep": True},
        **{"layers": [8, 4], "optimizer": {"name": "adam"}, "api_key": "hidden", "none": None},
    }
    writer = open_writer(storage, params=params)
    writer.succeeded()
    writer.flush()
    start, end = params_of(storage, tmp_path)
    assert start.hparams["learning_rate"].number_value == 0.5
    assert start.hparams["epochs"].number_value == 3.0
    assert start.hparams["name"].string_value == "ä" * 200
    assert start.hparams["is_deep"].bool_value is True
    assert start.hparams["layers"].string_value == "[8, 4]"
    assert start.hparams["optimizer.name"].string_value == "adam"
    assert start.hparams["api_key"].string_value == "***"
    assert start.hparams["none"].string_value == "null"
    assert start.group_name == "digits-1"
    assert end.status == 1  # STATUS_SUCCESS


def test_values_of_an_hour_are_in_one_file(storage: RunStorage, tmp_path: Path) -> None:
    now_s = [0.0]
    writer = open_writer(storage, now_s=now_s)
    for number in range(1, 21):
        now_s[0] = 180.0 * number
        append(writer, number, loss=0.5)
        writer.tick()
    assert storage.list_names(storage.tensorboard_folder(TRAIN)) == [
        "events.out.tfevents.000000-000000.raydist"
    ]
    shown = scalars_of(storage, TRAIN, tmp_path / "copy")["epoch_loss"]
    assert shown == [(number, 0.5) for number in range(1, 21)]


def test_storage_that_fails_keeps_the_values(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    storage = open_run(str(tmp_path / "runs"), run="digits-1")
    writer = open_writer(storage)
    append(writer, 10, loss=0.5)
    (tmp_path / "runs").write_text("no folder")
    writer.flush()
    writer.flush()
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "event files for TensorBoard are not stored"
    ]
    (tmp_path / "runs").unlink()
    writer.flush()
    assert scalars_of(storage, TRAIN, tmp_path) == {"epoch_loss": [(10, 0.5)]}
