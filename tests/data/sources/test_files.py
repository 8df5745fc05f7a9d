"""The URIs that sources take."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data.order.windows import Piece
from raydist.data.sources.files import DataFiles
from raydist.data.sources.parquet import ParquetSource
from raydist.errors import DataError


def test_paths_are_taken_as_text_is(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    names = [tmp_path / "a.parquet", tmp_path / "cat/b.parquet"]
    for name in names:
        pq.write_table(pa.table({"x": [1.0, 2.0]}), name)
    assert len(data.from_parquet(tmp_path)) == 4
    assert len(data.from_parquet(names)) == 4
    assert len(data.from_parquet([names[0], str(names[1])])) == 4
    assert len(data.from_images(tmp_path)) == 1
    (tmp_path / "empty").touch()
    with pytest.raises(DataError, match=r"from_tfrecord found no records in .*empty"):
        data.from_tfrecord(tmp_path / "empty")


@pytest.mark.parametrize("uris", [None, 3, b"data", [Path("README.md").resolve(), 3], [["data"]]])
def test_what_is_no_uri_is_a_data_error(uris: object) -> None:
    with pytest.raises(DataError, match=r"from_x got .* as a URI; give text or a pathlib\.Path, or a list"):
        DataFiles(uris, what="from_x")  # type: ignore[arg-type]


def test_secret_in_a_uri_is_not_told(s3_uri: str) -> None:
    with_secret = s3_uri.replace("s3://", "s3://name:swordfish@").replace(" ", "%20")
    with pytest.raises(DataError, match="found no files at s3://") as caught:
        data.from_parquet(with_secret)
    assert "swordfish" not in str(caught.value)


def write(path: Path, values: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": values}), path, compression="none")
    return path


def age(path: Path, seconds: int) -> None:
    later_ns = path.stat().st_mtime_ns + seconds * 10**9
    os.utime(path, ns=(later_ns, later_ns))


def sent(source: ParquetSource) -> ParquetSource:
    """Returns what another process has of it."""
    received = pickle.loads(pickle.dumps(source))
    assert isinstance(received, ParquetSource)
    return received


def read(source: ParquetSource) -> list[float]:
    [values] = source.read([Piece(0, 0, int(source.group_sizes[0]))])
    return [float(value) for value in values]


def test_another_process_may_have_a_copy_with_a_time_of_its_own(tmp_path: Path) -> None:
    """As each task has of the job's folder. Once looked at, the copy may not change either."""
    path = write(tmp_path / "a.parquet", np.arange(4.0))
    received = sent(data.from_parquet(path))
    age(path, 5)
    assert read(received) == read(received) == [0, 1, 2, 3]
    again = sent(received)
    age(path, 5)
    assert read(again) == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"a\.parquet has changed since it was opened"):
        read(received)


def test_another_process_may_not_have_another_content(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", np.arange(4.0))
    source = data.from_parquet(path)
    size = path.stat().st_size
    received = sent(source)
    write(path, np.arange(4.0) + 1)
    age(path, 5)
    assert path.stat().st_size == size
    with pytest.raises(DataError, match=r"a\.parquet has changed since it was opened"):
        read(received)


def test_path_into_a_copy_of_the_job_is_found_in_the_copy_of_another_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `Path(__file__).parent / "data"` is one."""
    own, other = (write(tmp_path / name / "data/a.parquet", np.arange(4.0)) for name in ("chief", "worker"))
    age(other, 5)
    monkeypatch.chdir(tmp_path / "chief")
    content = pickle.dumps(data.from_parquet(own.parent))
    shutil.rmtree(tmp_path / "chief")
    monkeypatch.chdir(tmp_path / "worker")
    assert read(pickle.loads(content)) == [0, 1, 2, 3]


def test_missing_files_are_told_with_the_folder_that_was_looked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    copy = "in the current folder: in a run that is the task's own copy of the job's folder, without what"
    with pytest.raises(DataError, match=rf"found no files at train, which does not exist {copy}"):
        data.from_parquet("train")
    with pytest.raises(DataError, match=rf"at empty {copy} \.raydistignore"):
        data.from_parquet("empty")
    with pytest.raises(DataError, match=rf"at {tmp_path}/empty {copy}"):
        data.from_parquet(tmp_path / "empty")
    with pytest.raises(DataError, match=r"at /nowhere/train, which does not exist on this host; give a file"):
        data.from_parquet("/nowhere/train")
