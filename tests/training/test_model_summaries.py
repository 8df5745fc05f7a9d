"""Histograms of weights and the graph of layers that a job asks for, read back with TensorBoard's readers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from raydist.storage.run_storage import RunStorage, open_run
from tests.support.event_files import histograms_of, layers_of, scalars_of
from tests.support.processes import DISTRIBUTED, Cluster, TaskProcess, run_function

TRAIN = "chief/train"

OPTIONS = {"tensorboard_histograms": "2", "tensorboard_graph": "true"}
# With batch normalization, whose moving statistics only all workers together can read with tf_keras.
TARGET = "tests.support.profiles:fit_normalised"


def trained(cluster: Cluster, uri: str, *, options: dict[str, str]) -> TaskProcess:
    """Returns the chief."""
    tasks = run_function(TARGET, cluster, timeout_s=900, storage=uri, job_options=options)
    return tasks[0]


def run_in(uri: str) -> RunStorage:
    [name] = [name for name in open_run(uri, run="").list_names("") if not name.startswith(".")]
    return open_run(uri, run=name)


@pytest.mark.exhaustive("legacy", "multi_worker_mirrored", "parameter_server", covered_by="[mirrored-3]")
@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("cluster", DISTRIBUTED, ids=lambda cluster: cluster.strategy)
def test_histograms_have_the_weights_and_change_nothing(
    tmp_path: Path, cluster: Cluster, keras: str, request: pytest.FixtureRequest
) -> None:
    cluster = dataclasses.replace(cluster, keras=keras)
    uri = str(tmp_path / "runs")
    if cluster.strategy == "mirrored":
        uri = request.getfixturevalue("s3_uri")
    chief = trained(cluster, uri, options=OPTIONS)
    plain = trained(cluster, str(tmp_path / "plain"), options={})
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(chief.arrays[name], array)
    histograms = histograms_of(run_in(uri), TRAIN, tmp_path)
    assert len(histograms) == len(chief.arrays) == 8
    for name, array in chief.arrays.items():
        buckets = histograms[f"{name}/histogram"]
        assert list(buckets) == [8, 16]  # after epochs 2 and 4 of 5
        assert buckets[16][:, 2].sum() == array.size
    final = {name: histograms[f"{name}/histogram"][16] for name in chief.arrays}
    assert any(buckets[0, 0] < 0 < buckets[-1, 1] for buckets in final.values())
    layers = layers_of(run_in(uri), TRAIN, tmp_path)
    assert [name.rpartition("/")[2] for name in layers][-3:] == ["narrow", "norm", "out"]
    assert not any("/" in tag for tag in scalars_of(run_in(str(tmp_path / "plain")), TRAIN, tmp_path))
