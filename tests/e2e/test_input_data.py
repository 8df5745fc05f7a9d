"""What a user sees of bad input data, on real Ray and TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import Ended

pytestmark = pytest.mark.slow

JOB = """
import tensorflow as tf

import raydist


@raydist.job(workers=2, params={"data": ""})
def train(ctx: raydist.TrainContext):
    source = raydist.data.from_parquet(ctx.params["data"], features=["a", "b"], label="y")
    batches = source.batches(global_batch_size=16, seed=1, window_mb=0.002)
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.compile("sgd", loss="mse")
    ctx.fit(model, batches, epochs=3)
"""


def write_with_a_null(path: Path) -> None:
    """Row group 41 of column b has a null, and no statistics that would tell before."""
    values = np.linspace(0, 1, 48 * 8)
    with_null = pa.array(values, mask=np.arange(len(values)) == 41 * 8 + 3)
    table = pa.table({"a": values, "b": with_null, "y": values})
    pq.write_table(table, path, row_group_size=8, write_statistics=False)


def test_null_that_no_statistics_show_ends_the_run_with_one_sentence(
    raydist: Callable[..., Ended], tmp_path: Path
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    path = tmp_path / "train.parquet"
    write_with_a_null(path)
    ended = raydist("submit", str(folder / "job.py"), "-p", f"data={path}", "--json")
    assert ended.code == 2, ended.err
    error = ended.json["error"]
    assert error["type"] == "DataError"
    assert f"column b has 1 null in row group 41 of {path}; give defaults={{'b': …}}" in error["message"]
    assert ended.json["attempts"] == 1
    assert "\n" not in error["message"]
    assert "Traceback" not in ended.out + ended.err
    assert ended.err.count("row group 41") == 1
