"""Reads a run's event files with TensorBoard's own readers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raydist.planning.assignment import TaskAssignment
from raydist.spec.job import EntryPoint, JobSpec, KerasFlavour, Strategy
from raydist.spec.tasks import ClusterSpec, TaskId, TaskType
from raydist.storage.run_storage import RunStorage

Scalars = list[tuple[int, float]]


def scalars_of(storage: RunStorage, folder: str, tmp_path: Path) -> dict[str, Scalars]:
    """Returns (step, value) of each tag, as TensorBoard shows them."""
    events = accumulated(storage, folder, tmp_path)
    return {
        tag: [(event.step, float(event.tensor_proto.float_val[0])) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


Buckets = dict[int, np.ndarray]


def histograms_of(folder: Path) -> dict[str, Buckets]:
    """Returns of each histogram by its tag, and by step, rows of left edge, right edge and count."""
    events = loaded(folder)
    return {
        tag: {event.step: make_ndarray(event.tensor_proto) for event in events.Tensors(tag)}
        for tag in events.PluginTagToContent("histograms")
    }


def layers_of(folder: Path) -> dict[str, list[str]]:
    """Returns the inputs of each layer, as TensorBoard's graph page draws them."""
    from tensorboard.plugins.graph import keras_util

    events = loaded(folder)
    assert "keras" in events.PluginTagToContent("graph_keras_model")
    [event] = events.Tensors("keras")
    config = json.loads(make_ndarray(event.tensor_proto).item())
    return {node.name: list(node.input) for node in keras_util.keras_model_to_graph_def(config).node}


def make_ndarray(tensor: Any) -> np.ndarray:
    from tensorboard.util import tensor_util

    array: np.ndarray = tensor_util.make_ndarray(tensor)
    return array


def params_of(storage: RunStorage, tmp_path: Path) -> tuple[Any, Any]:
    """Returns what the HParams plugin knows of a run's start and of its end."""
    from tensorboard.plugins.hparams import metadata

    events = accumulated(storage, "", tmp_path)
    contents = events.PluginTagToContent("hparams")
    return (
        metadata.parse_session_start_info_plugin_data(contents[metadata.SESSION_START_INFO_TAG]),
        metadata.parse_session_end_info_plugin_data(contents[metadata.SESSION_END_INFO_TAG]),
    )


def accumulated(storage: RunStorage, folder: str, tmp_path: Path) -> Any:
    """Returns TensorBoard's accumulator, loaded with copies of the files of one folder."""
    copies = tmp_path / "event-files"
    shutil.rmtree(copies, ignore_errors=True)
    key = storage.tensorboard_folder(folder)
    for name in storage.list_names(key):
        if "tfevents" in name:
            storage.download(f"{key}/{name}", copies / name)
    return loaded(copies)


def loaded(folder: Path) -> Any:
    """Returns TensorBoard's accumulator, loaded with the files of a local folder."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    kept = dict.fromkeys(("scalars", "hparams", "histograms", "graph_keras_model"), 0)  # all
    events = EventAccumulator(str(folder), tensor_size_guidance=kept)
    events.Reload()
    return events


def assignment_of(
    task: str = "worker/0", *, attempt: int = 0, params: Mapping[str, Any] | None = None
) -> TaskAssignment:
    """Returns that of a task of the run digits-1, which has two workers."""
    return TaskAssignment(
        task=TaskId.parse(task),
        job=JobSpec(name="digits-1", entry_point=EntryPoint(function="train"), params=params or {}),
        strategy=Strategy.MULTI_WORKER_MIRRORED,
        keras=KerasFlavour.KERAS_3,
        cluster_spec=ClusterSpec(jobs=((TaskType.WORKER, ("h0:1", "h1:1")),)),
        attempt=attempt,
        run_uri="runs/digits-1",
        num_workers=2,
        num_slots=2,
    )
