"""Histograms of weights and layers by Keras's TensorBoard callback, read back with TensorBoard's readers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.support.event_files import histograms_of, layers_of
from tests.support.processes import DISTRIBUTED, Cluster, run_in_turn

# With batch normalization, whose moving statistics only all workers together can read with tf_keras.
TARGET = "tests.support.profiles:fit_normalised"


@pytest.mark.exhaustive("legacy", "multi_worker_mirrored", "parameter_server", covered_by="[mirrored-3]")
@pytest.mark.slow
@pytest.mark.parametrize("keras", ["3", "legacy"])
@pytest.mark.parametrize("cluster", DISTRIBUTED, ids=lambda cluster: cluster.strategy)
def test_chief_alone_writes_the_weights_and_training_is_the_same(
    tmp_path: Path, cluster: Cluster, keras: str
) -> None:
    calls = {"board": (TARGET, {"board": str(tmp_path)}), "plain": (TARGET, {})}
    found = run_in_turn(calls, dataclasses.replace(cluster, keras=keras))
    chief, plain = found["board"][0], found["plain"][0]
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(chief.arrays[name], array)
    assert len(list((tmp_path / "train").iterdir())) == 1
    histograms = histograms_of(tmp_path / "train")
    assert len(chief.arrays) == 8
    for name, array in chief.arrays.items():
        [buckets] = [each for tag, each in histograms.items() if tag.startswith(name)]
        assert list(buckets) == [0, 2, 4]
        assert buckets[4][:, 2].sum() == array.size
        np.testing.assert_allclose(buckets[4][[0, -1], [0, 1]], [array.min(), array.max()], rtol=1e-5)
    assert [name.rpartition("/")[2] for name in layers_of(tmp_path / "train")][-3:] == [
        "narrow",
        "norm",
        "out",
    ]
