"""The URIs that sources take."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data.sources.files import DataFiles
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
