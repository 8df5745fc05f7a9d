"""from_tfrecord: where the records of a file are, and what is told of files that are none."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from raydist import data
from raydist.data.order.windows import Piece
from raydist.data.sources.tfrecord import TFRecordSource
from raydist.errors import DataError


def record(content: bytes) -> bytes:
    """A record whose checksums, which raydist does not look at, are 0."""
    return struct.pack("<QI", len(content), 0) + content + bytes(4)


def write(path: Path, contents: list[bytes]) -> Path:
    path.write_bytes(b"".join(map(record, contents)))
    return path


def rows(source: TFRecordSource) -> list[bytes]:
    pieces = [Piece(group, 0, int(size)) for group, size in enumerate(source.group_sizes)]
    records, _ = source.read(pieces)
    return list(records)


def test_records_of_a_folder_come_in_the_order_of_its_files(tmp_path: Path) -> None:
    contents = [os.urandom(length) for length in (0, 1, 100, 70_000, 3)]
    write(tmp_path / "b-00001-of-00002", contents[3:])
    write(tmp_path / "a-00000-of-00002", contents[:3])
    write(tmp_path / "empty", [])
    source = data.from_tfrecord(str(tmp_path))
    assert len(source) == 5
    assert rows(source) == contents
    assert rows(pickle.loads(pickle.dumps(source))) == contents
    assert rows(data.from_tfrecord([str(tmp_path / "b-00001-of-00002")])) == contents[3:]


def test_large_files_are_cut_into_groups(tmp_path: Path) -> None:
    contents = [os.urandom(300_000) for _ in range(40)] + [b"small"] * 9000 + [os.urandom(9_000_000), b"end"]
    write(tmp_path / "file", contents)
    source = data.from_tfrecord(str(tmp_path / "file"))
    assert len(source) == len(contents)
    assert len(source.group_sizes) > 15
    assert rows(source) == contents
    starts = np.cumsum(source.group_sizes) - source.group_sizes
    found, places = source.read([Piece(3, 1, 2), Piece(0, 0, 1)])
    assert places.tolist() == [sum(len(one) + 16 for one in contents[: starts[3] + 1]), 0]
    assert list(found) == [contents[starts[3] + 1], contents[0]]
    assert 1000 < source.num_bytes < 5000


def test_index_is_made_once_and_anew_for_a_changed_file(tmp_path: Path, index_folder: Path) -> None:
    path = write(tmp_path / "file", [b"one", b"two"])
    data.from_tfrecord(str(path))
    [index] = index_folder.rglob("*.npy")
    before = index.stat().st_mtime_ns
    assert len(data.from_tfrecord(str(path))) == 2
    assert (index.stat().st_mtime_ns, len(list(index_folder.rglob("*")))) == (before, 2)
    write(path, [b"one", b"two", b"three"])
    assert rows(data.from_tfrecord(str(path))) == [b"one", b"two", b"three"]
    assert len(list(index_folder.rglob("*.npy"))) == 2


@pytest.mark.parametrize("content", [b"", b"no index", b"\x93NUMPY\x01\x00"])
def test_damaged_index_is_made_anew(tmp_path: Path, index_folder: Path, content: bytes) -> None:
    path = write(tmp_path / "file", [b"one", b"two"])
    data.from_tfrecord(str(path))
    [index] = index_folder.rglob("*.npy")
    whole = index.read_bytes()
    index.write_bytes(content)
    assert rows(data.from_tfrecord(str(path))) == [b"one", b"two"]
    assert index.read_bytes() == whole


def test_index_that_cannot_be_kept_is_made_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.setenv("RAYDIST_CACHE", str(tmp_path / "a file"))
    assert len(data.from_tfrecord(str(write(tmp_path / "records", [b"one"])))) == 1


def test_s3(s3_uri: str) -> None:
    from raydist.storage.filesystem import Storage

    Storage.open(s3_uri).write_bytes("records/0", record(b"one") + record(b"two"))
    assert rows(data.from_tfrecord(f"{s3_uri}/records")) == [b"one", b"two"]


def test_compressed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.gz").write_bytes(gzip.compress(record(b"one") * 100))
    with pytest.raises(DataError, match=r"file\.gz does not begin with a TFRecord; .* not compressed\?"):
        data.from_tfrecord(str(tmp_path))


@pytest.mark.parametrize("left", [5, 13, 16, 18])
def test_cut_off_file_is_refused(tmp_path: Path, left: int) -> None:
    """Inside of the header, the content, and the checksum behind it; `left` bytes of the second record."""
    content = record(b"one") + record(b"two")[:left]
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DataError, match=r"file is cut off, or damaged: the record at byte 19 does not end"):
        data.from_tfrecord(str(tmp_path / "file"))


def test_no_records(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"from_tfrecord found no records in .*file"):
        data.from_tfrecord(str(tmp_path))
    with pytest.raises(DataError, match=r"from_tfrecord found no files at .*nothing"):
        data.from_tfrecord(str(tmp_path / "nothing"))


def test_file_that_is_cut_off_under_way(tmp_path: Path) -> None:
    path = write(tmp_path / "file", [b"one", b"two"])
    source = data.from_tfrecord(str(path))
    before = path.stat()
    path.write_bytes(path.read_bytes()[:19])
    with pytest.raises(DataError, match=r"input file .*file has changed since it was opened: it had 38"):
        rows(source)
    # Of the same size and time, but with records at other places.
    path.write_bytes(record(b"other") + record(b"1"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataError, match=r"a record from byte 0 to 38 of .*file is not where it was"):
        rows(source)


def test_what_is_kept_of_a_file_is_of_its_bytes_not_of_its_records(tmp_path: Path) -> None:
    """An index of billions of records would be as large as memory."""
    few = data.from_tfrecord(write(tmp_path / "few", [bytes(4084)] * 1000))
    many = data.from_tfrecord(write(tmp_path / "many", [bytes(1008)] * 4000))
    assert (len(few), len(many)) == (1000, 4000)
    assert len(few.group_sizes) == len(many.group_sizes) == 4
    assert len(pickle.dumps(many)) < len(pickle.dumps(few)) + 10
