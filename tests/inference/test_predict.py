"""What an actor of `raydist predict` asks of its host."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist.errors import DataError, StorageError
from raydist.inference import predict
from raydist.inference.inputs import open_input
from raydist.inference.parts import cut
from raydist.inference.predict import PartPredictor, gpu_share
from raydist.inference.signature import ModelInput
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import open_run
from tests.support.disks import mounted_disk


@pytest.mark.parametrize(
    ("num_gpus", "workers", "share"),
    [(0, 3, 0.0), (2, 1, 1.0), (2, 2, 1.0), (2, 3, 0.5), (2, 5, 1 / 3), (1, 4, 0.25), (8, 3, 1.0)],
)
def test_each_worker_has_its_share_on_one_gpu(num_gpus: int, workers: int, share: float) -> None:
    assert gpu_share(num_gpus, workers=workers) == share
    if share:
        assert num_gpus * int(1 / share + 1e-9) >= workers


class WideModel:
    """A model that returns wide rows."""

    inputs = (ModelInput(name="x", shape=(), dtype=np.dtype("float32")),)

    def predict(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"y": np.random.default_rng(0).normal(size=(len(values["x"]), 200))}


def test_predictions_are_written_as_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PairModel(WideModel):
        def predict(self, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            x = values["x"]
            return {"p": np.stack([x, -x], -1), "t": np.array([b'a"', b"b"], object), "y": x[:, None] / 2}

    (tmp_path / "data.csv").write_text('zip,x,name\n007,1,"a,\nb"\n"08",2,\n')
    data = open_input(str(tmp_path / "data.csv"), format=None, features=None, copy=None)
    parts = cut(data.unit_rows, data.unit_files, most_rows=data.part_rows, to=data.to)
    monkeypatch.setattr(predict, "load_model", lambda run: PairModel())
    run, out = open_run(str(tmp_path), run="r"), Storage.open(str(tmp_path / "out"))
    predictor = PartPredictor(run=run, out=out, data=data, parts=parts, batch_size=8)
    assert predictor(0) == 2
    with (tmp_path / "out/part-000000.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["zip", "name", "p_0", "p_1", "t", "y"],
            ["007", "a,\nb", "1", "-1", 'a"', "0.5"],
            ["08", "", "2", "-2", "b", "1"],
        ]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            {"v": [[1], [1, 2]]},
            r"column v is list.*, which CSV cannot hold; leave it out with --copy, or write",
        ),
        (
            {"b": [b"a", b"\xff"]},
            r"cannot write 0\.csv: Invalid UTF8 payload; write Parquet with --to parquet",
        ),
        ({"p_0": [1, 2], "p": pa.array([[1], [2]], pa.list_(pa.int64(), 1))}, "two columns are named p_0"),
    ],
)
def test_what_csv_cannot_hold_is_one_sentence(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        predict._written(tmp_path / "0.csv", [pa.table(columns)])


def predictor_of(folder: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> PartPredictor:
    pq.write_table(pa.table({"x": np.zeros(2000, np.float32)}), folder / "data.parquet")
    data = open_input(str(folder / "data.parquet"), format=None, features=None, copy=None)
    parts = cut(data.unit_rows, data.unit_files, most_rows=data.part_rows)
    monkeypatch.setattr(predict, "load_model", lambda run: WideModel())
    return PartPredictor(
        run=open_run(str(folder), run="r"),
        out=Storage.open(str(out)),
        data=data,
        parts=parts,
        batch_size=data.batch_size,
    )


def test_folder_of_the_predictions_that_is_full_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted_disk(tmp_path / "out", size="400k") as out:
        told = predictor_of(tmp_path, out, monkeypatch)(0)
        assert isinstance(told, StorageError)
        assert str(told).startswith(f"cannot upload to {out}/part-000000.parquet: No space left")
        assert list(out.iterdir()) == []


def test_temporary_folder_that_is_full_is_not_told_as_the_models_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predictor = predictor_of(tmp_path, tmp_path / "out", monkeypatch)
    with mounted_disk(tmp_path / "small", size="400k") as small:
        monkeypatch.setattr(tempfile, "tempdir", str(small))
        told = predictor(0)
        assert isinstance(told, StorageError)
        assert str(told) == (
            f"{small} is full, where part-000000.parquet was being written; make room there, or set TMPDIR "
            "to another folder"
        )
        assert list(small.iterdir()) == []
    monkeypatch.setattr(tempfile, "tempdir", None)
    assert predictor(0) == 2000
    assert pq.read_metadata(tmp_path / "out/part-000000.parquet").num_rows == 2000
