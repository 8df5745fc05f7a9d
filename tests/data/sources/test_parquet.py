"""from_parquet: what becomes a tensor, and what is told when it cannot."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data.order.windows import Piece
from raydist.data.sources.source import Source
from raydist.errors import DataError


def write(folder: Path, name: str = "part-0.parquet", *, rows_per_group: int = 4, **columns: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=rows_per_group)
    return path


def rows(source: Source) -> list[np.ndarray]:
    """Returns all examples in the source's order."""
    return source.read([Piece(group, 0, int(size)) for group, size in enumerate(source.group_sizes)])


def numbers(count: int = 10) -> dict[str, Any]:
    return {"a": np.arange(count), "b": np.arange(count) * 0.5, "y": np.arange(count) % 3}


def test_features_are_stacked_to_one_tensor_with_a_label(tmp_path: Path) -> None:
    write(tmp_path, **numbers())
    source = data.from_parquet(str(tmp_path), features=["b", "a"], label="y")
    x, y = rows(source)
    assert source.structure == (0, 1)
    assert [(field.shape, field.dtype) for field in source.fields] == [((2,), np.float32), ((), np.int64)]
    assert x.dtype == np.float32
    assert np.array_equal(x, np.stack([np.arange(10) * 0.5, np.arange(10)], 1))
    assert np.array_equal(y, np.arange(10) % 3)
    assert source.group_sizes.tolist() == [4, 4, 2]
    alone = data.from_parquet(str(tmp_path), features=["a"], dtype="int16")
    assert alone.structure == 0
    assert rows(alone)[0].dtype == np.int16


def test_large_groups_are_stacked_block_by_block(tmp_path: Path) -> None:
    count = 200_003  # 2.4 MB of features: two blocks, of which the second one is shorter
    write(
        tmp_path, rows_per_group=count, a=np.arange(count), b=np.arange(count) * 0.5, c=np.ones(count, "bool")
    )
    [x] = rows(data.from_parquet(str(tmp_path), features=["a", "b", "c"]))
    assert np.array_equal(x, np.stack([np.arange(count), np.arange(count) * 0.5, np.ones(count)], 1))


def test_columns_become_a_dict_of_their_own_types(tmp_path: Path) -> None:
    write(
        tmp_path,
        truth=pa.array([True, False, True]),
        half=pa.array([0.5, 1.0, 1.5], pa.float16()),
        small=pa.array([1, 2, 3], pa.uint8()),
        text=pa.array(["ä", "", "c"]),
        large=pa.array(["x", "y", "z"], pa.large_string()),
        raw=pa.array([b"\0\1", b"", b"2"]),
        kind=pa.array(["red", "blue", "red"]).dictionary_encode(),
        vector=pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        fixed=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
        y=pa.array([0, 1, 0]),
    )
    source = data.from_parquet(str(tmp_path), label="y")
    inputs, label = source.structure
    assert sorted(inputs) == sorted(
        ["truth", "half", "small", "text", "large", "raw", "kind", "vector", "fixed"]
    )
    arrays = rows(source)
    found = {name: arrays[number] for name, number in inputs.items()}
    assert found["truth"].tolist() == [True, False, True]
    assert found["half"].dtype == np.float16
    assert found["small"].dtype == np.uint8
    assert found["text"].tolist() == ["ä", "", "c"]
    assert found["large"].tolist() == ["x", "y", "z"]
    assert found["raw"].tolist() == [b"\0\1", b"", b"2"]
    assert found["kind"].tolist() == ["red", "blue", "red"]
    assert found["vector"].tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert found["fixed"].dtype == np.int32
    assert found["fixed"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert arrays[label].tolist() == [0, 1, 0]
    fields = {field.name: field for field in source.fields}
    assert fields["vector"].shape == fields["fixed"].shape == (2,)
    assert fields["kind"].dtype == object
    for field, array in zip(source.fields, arrays, strict=True):
        assert field.dtype == array.dtype
    assert data.from_parquet(str(tmp_path), columns=["raw"]).structure == {"raw": 0}


def test_pieces_of_groups_are_sliced_with_their_lists(tmp_path: Path) -> None:
    vectors = [[number, number + 0.5] for number in range(10)]
    write(tmp_path, v=vectors, f=pa.array(vectors, pa.list_(pa.float32(), 2)), n=list(range(10)))
    source = data.from_parquet(str(tmp_path), columns=["v", "f", "n"])
    f, n, v = source.read([Piece(1, 1, 4), Piece(0, 3, 4), Piece(2, 0, 2)])
    assert n.tolist() == [5, 6, 7, 3, 8, 9]
    assert v.tolist() == f.tolist() == [vectors[number] for number in n]


def test_arrow_tensors_keep_their_shape(tmp_path: Path) -> None:
    images = np.arange(3 * 2 * 4, dtype="uint8").reshape(3, 2, 4)
    write(tmp_path, image=pa.FixedShapeTensorArray.from_numpy_ndarray(images), rows_per_group=2)
    source = data.from_parquet(str(tmp_path))
    assert source.fields[0].shape == (2, 4)
    assert np.array_equal(rows(source)[0], images)
    assert np.array_equal(source.read([Piece(0, 1, 2)])[0], images[1:2])


def test_lists_of_unequal_length_are_ragged_or_padded(tmp_path: Path) -> None:
    lists = [[number] * (number % 4) for number in range(10)]
    large = pa.array([[one / 2 for one in row] for row in lists], pa.large_list(pa.float32()))
    truth = [[one % 2 == 0 for one in row] for row in lists]
    write(tmp_path, t=lists, u=pa.array(lists, pa.list_(pa.uint32())), f=large, b=truth, y=list(range(10)))
    options: dict[str, Any] = {"padded_shapes": {"f": 3, "b": [4]}, "padding_values": {"f": -1}}
    source = data.from_parquet(str(tmp_path), label="y", ragged=["t", "u"], **options)
    assert source.num_bytes > 64 * 2 + 3 * 4 + 4 + 8  # with the bytes of the ragged ones
    inputs, _ = source.structure
    found = dict(zip([*sorted(inputs), "y"], rows(pickle.loads(pickle.dumps(source))), strict=True))
    assert found["f"].tolist() == [[one / 2 for one in row] + [-1.0] * (3 - len(row)) for row in lists]
    assert found["b"].tolist() == [row + [False] * (4 - len(row)) for row in truth]
    for name, dtype in {"t": np.int64, "u": np.uint32}.items():
        assert [np.frombuffer(row, dtype).tolist() for row in found[name]] == lists
    assert found["y"].tolist() == list(range(10))
    [stacked] = rows(data.from_parquet(str(tmp_path), features=["t"], ragged=["t"]))
    assert [np.frombuffer(row, np.float32).tolist() for row in stacked] == lists


def test_empty_lists_and_empty_groups(tmp_path: Path) -> None:
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("v", pa.list_(pa.int64()))])) as writer:
        for count in (0, 2, 0, 3):
            writer.write_table(pa.table({"v": pa.array([[]] * count, pa.list_(pa.int64()))}))
    source = data.from_parquet(str(tmp_path), columns=["v"])
    assert (len(source), source.group_sizes.tolist(), source.fields[0].shape) == (5, [2, 3], (0,))
    assert rows(source)[0].shape == (5, 0)


def test_defaults_stand_in_for_nulls(tmp_path: Path) -> None:
    write(
        tmp_path,
        a=pa.array([1, None, 3]),
        t=pa.array([None, "x", "y"]),
        k=pa.array(["r", None, "r"]).dictionary_encode(),
        v=pa.array([None, [1.0, 2.0], [3.0, 4.0]]),
        f=pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int32(), 2)),
    )
    defaults = {"a": -1, "t": "none", "k": "g", "v": [0.0, 0.0], "f": [9, 9]}
    source = data.from_parquet(str(tmp_path), columns=["a", "t", "k", "v", "f"], defaults=defaults)
    found = {name: rows(source)[number].tolist() for name, number in source.structure.items()}
    assert found == {
        "a": [1, -1, 3],
        "t": ["none", "x", "y"],
        "k": ["r", "g", "r"],
        "v": [[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]],
        "f": [[1, 2], [9, 9], [3, 4]],
    }
    assert [array.tolist() for array in rows(pickle.loads(pickle.dumps(source)))] == [
        array.tolist() for array in rows(source)
    ]


def test_folders_files_and_several_uris(tmp_path: Path) -> None:
    write(tmp_path / "b", "2.parquet", n=[3])
    write(tmp_path / "b", "deeper/1.pq", n=[4])
    write(tmp_path / "a with 'space'", "x.parquet", n=[1, 2])
    write(tmp_path / "b", ".hidden.parquet", n=[98])
    write(tmp_path / "b", "_tmp/x.parquet", n=[99])
    (tmp_path / "b" / "_SUCCESS").touch()
    (tmp_path / "b" / "readme.txt").write_text("no data")
    one_file = write(tmp_path / "c", "data.bin", n=[5])
    uris = [f"{tmp_path}/a with 'space'", f"file://{tmp_path}/b", str(one_file)]
    assert rows(data.from_parquet(uris))[0].tolist() == [1, 2, 3, 4, 5]
    assert rows(data.from_parquet(list(reversed(uris))))[0].tolist() == [5, 3, 4, 1, 2]


def test_s3_is_read_by_several_tasks_alike(s3_uri: str) -> None:
    from raydist.storage.filesystem import Storage

    storage = Storage.open(s3_uri)
    for number in range(2):
        sink = pa.BufferOutputStream()
        table = pa.table({"n": np.arange(20) + 20 * number, "t": [str(one) for one in range(20)]})
        pq.write_table(table, sink, row_group_size=5)
        storage.write_bytes(f"train/part-{number}.parquet", sink.getvalue().to_pybytes())
    source = data.from_parquet(f"{s3_uri}/train", columns=["n", "t"])
    other = pickle.loads(pickle.dumps(source))
    assert rows(source)[0].tolist() == list(range(40))
    assert rows(other)[1].tolist() == [str(one % 20) for one in range(40)]
    one_file = data.from_parquet(f"{s3_uri}/train/part-1.parquet", columns=["n"])
    assert rows(one_file)[0].tolist() == list(range(20, 40))
    storage.delete("train/part-1.parquet")
    with pytest.raises(DataError, match=r"train/part-1\.parquet is gone since the run began"):
        rows(source)
    with pytest.raises(DataError, match="from_parquet found no files at s3://"):
        data.from_parquet(f"{s3_uri}/nothing")


def test_files_of_the_same_tensors_may_differ_in_arrow_types(tmp_path: Path) -> None:
    """As pandas 2 and 3, with and without categories, write them."""
    columns = [pa.array(["a", "b"]), pa.array(["a", "b"], pa.large_string())]
    columns.append(pa.array(["a", "b"]).dictionary_encode())
    for number, column in enumerate(columns):
        lists = pa.array([[1], [2]], pa.large_list(pa.int64()) if number else pa.list_(pa.int64()))
        write(tmp_path, f"{number}.parquet", t=column, v=lists)
    source = data.from_parquet(str(tmp_path))
    assert rows(source)[0].tolist() == ["a", "b"] * 3
    assert rows(source)[1].tolist() == [[1], [2]] * 3


def test_window_is_sized_by_the_texts_in_it(tmp_path: Path) -> None:
    """Images in a column are not 64 bytes."""
    contents = [os.urandom(50_000) for _ in range(20)]
    write(tmp_path, image=contents, n=list(range(20)), rows_per_group=2)
    assert 50_000 < data.from_parquet(str(tmp_path)).num_bytes < 51_000
    assert data.from_parquet(str(tmp_path), columns=["n"]).num_bytes == 8


READ_IN_THREADS = """
import sys, threading
from raydist import data
from raydist.data.order.windows import Piece

source = data.from_parquet(sys.argv[1], features=[f"f{n}" for n in range(32)])
wrong = []

def read(thread):
    for number in range(400):
        group = (number * 7 + thread * 13) % 100
        [x] = source.read([Piece(group, 0, 500)])
        if not (x == group).all():
            wrong.append(group)

threads = [threading.Thread(target=read, args=(thread,)) for thread in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(wrong)
"""


@pytest.mark.slow
def test_threads_may_read_one_source(tmp_path: Path) -> None:
    """A pyarrow.ParquetFile that threads share hangs, crashes, or misses its own cache."""
    groups = np.repeat(np.arange(100.0), 500)
    path = write(tmp_path, **{f"f{n}": groups for n in range(32)}, rows_per_group=500)
    ended = subprocess.run(
        [sys.executable, "-c", READ_IN_THREADS, str(path)], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")


def test_a_pickled_source_reads_the_same(tmp_path: Path) -> None:
    write(tmp_path, **numbers())
    batches = data.from_parquet(str(tmp_path), features=["a"], label="y").batches(global_batch_size=4, seed=1)
    batches.reader().block(0, 1, 0, 4)  # with an open file
    sent = pickle.loads(pickle.dumps(batches.cached("memory").map(lambda x, y: x).without_maps()))
    for step in range(6):
        size = batches.steps.size_of(step % 3)
        for here, there in zip(
            batches.reader().block(step, 1, 0, size), sent.reader().block(step, 1, 0, size), strict=True
        ):
            assert np.array_equal(here, there)


# What is bad in it, how it is read, and what is said.
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "missing column": (
        {"price": [1.0], "y": [1]},
        {"features": ["prise"], "label": "y"},
        r"part-0\.parquet has no column prise; did you mean price\?",
    ),
    "missing label": ({"a": [1]}, {"features": ["a"], "label": "lable"}, "has no column lable"),
    "timestamp": (
        {"t": pa.array([1], pa.timestamp("us"))},
        {},
        r"column t of .*part-0\.parquet is timestamp\[us\], which has no tensor type; name the other",
    ),
    "decimal": ({"d": pa.array([1], pa.decimal128(5, 2))}, {}, "column d of .* is decimal128"),
    "struct": ({"s": pa.array([{"x": 1}])}, {}, "column s of .* is struct"),
    "lists of text": ({"s": pa.array([["x"]])}, {}, "column s of .* is list"),
    "stacked text": (
        {"a": [1], "t": ["x"]},
        {"features": ["a", "t"]},
        "column t is string and cannot be stacked",
    ),
    "stacked list": ({"v": [[1]], "a": [1]}, {"features": ["v", "a"]}, "column v is list"),
    "null in statistics": (
        {"a": pa.array([1, 2, 3, 4, 5, None])},
        {"features": ["a"]},
        r"column a has 1 null in row group 1 of .*part-0\.parquet; give defaults=\{'a': …\}",
    ),
    "no rows": ({"a": pa.array([], pa.int64())}, {}, "from_parquet found no rows in 1 files"),
    "twice": ({"a": [1]}, {"features": ["a", "a"]}, "a column is named twice"),
    "label as feature": (
        {"a": [1], "y": [1]},
        {"features": ["a", "y"], "label": "y"},
        "column y is the label, and named among .* too",
    ),
    "text for a list": ({"a": [1]}, {"features": "a"}, "features and columns are lists of names"),
    "features and columns": ({"a": [1]}, {"features": ["a"], "columns": ["a"]}, "got features and columns"),
    "no column left": ({"y": [1]}, {"label": "y"}, "and not empty"),
    "dtype": ({"a": [1]}, {"features": ["a"], "dtype": "flaot32"}, "dtype is 'flaot32'; give a type of"),
    "unread default": ({"a": [1]}, {"features": ["a"], "defaults": {"b": 1}}, "defaults names column b"),
    "default of another type": (
        {"a": [1]},
        {"features": ["a"], "defaults": {"a": "x"}},
        "defaults has 'x' for column a, which is int64",
    ),
    "default that would be cut": (
        {"a": [1]},
        {"features": ["a"], "defaults": {"a": 0.5}},
        "defaults has 0.5 for column a, which is int64",
    ),
    "ragged number": (
        {"a": [1]},
        {"ragged": ["a"]},
        "ragged names column a of .*, which is int64; name lists",
    ),
    "unread ragged": ({"a": [1], "b": [[1]]}, {"columns": ["a"], "ragged": ["b"]}, "ragged names column b"),
    "ragged and padded": (
        {"v": [[1]]},
        {"ragged": ["v"], "padded_shapes": {"v": 1}},
        "column v is named in ragged and in padded_shapes",
    ),
    "longest of a batch": (
        {"v": [[1]]},
        {"padded_shapes": {"v": None}},
        "has None for column v; give the leng",
    ),
    "padding of another type": (
        {"v": [[1]]},
        {"padded_shapes": {"v": 1}, "padding_values": {"v": 0.5}},
        "padding_values has 0.5 for column v",
    ),
    "length without a name": (
        {"v": [[1]]},
        {"padded_shapes": "v"},
        "padded_shapes is 'v'; give a dict by column",
    ),
    "default without a name": ({"v": [1]}, {"defaults": 0.5}, r"defaults is 0\.5; give a dict by column"),
    "padding without a length": ({"v": [[1]]}, {"padding_values": {"v": 1}}, "which padded_shapes does not"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_before_anything_is_read(tmp_path: Path, case: str) -> None:
    columns, options, message = BAD[case]
    write(tmp_path, **columns)
    with pytest.raises(DataError, match=message):
        data.from_parquet(str(tmp_path), **options)


BAD_WHEN_READ: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "ragged lists": (
        {"v": [[1, 2]] * 5 + [[1, 2, 3]]},
        {},
        r"column v has lists of 2, 3 values in row group 1 of .*part-0\.parquet; every row needs as many",
    ),
    "longer than padded": (
        {"v": [[1, 2]] * 5 + [[1, 2, 3]]},
        {"padded_shapes": {"v": 2}},
        "column v has a list of 3 values in row group 1 .*, more than its padded shape 2",
    ),
    "null in a list": (
        {"v": [[1, 2]] * 5 + [[1, None]]},
        {},
        r"column v has nulls \(1\) inside of its lists in row group 1 of .*part-0\.parquet",
    ),
    "null list": (
        {"v": [[1, 2]] * 5 + [None]},
        {},
        r"column v has 1 null in row group 1 of .*part-0\.parquet",
    ),
    "null without statistics": (
        {"a": pa.array([1, 2, 3, 4, 5, None, None])},
        {"features": ["a"]},
        r"column a has 2 nulls in row group 1 of .*part-0\.parquet; give defaults=\{'a': …\}, or write",
    ),
    "default of another length": (
        {"v": [[1, 2]] * 5 + [None]},
        {"defaults": {"v": [0]}},
        "column v has lists of 1, 2 values in row group 1",
    ),
}


@pytest.mark.parametrize("case", BAD_WHEN_READ)
def test_bad_input_is_told_when_it_is_read(tmp_path: Path, case: str) -> None:
    columns, options, message = BAD_WHEN_READ[case]
    path = tmp_path / "part-0.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=4, write_statistics=False)
    source = data.from_parquet(str(tmp_path), **options)
    assert len(source.read([Piece(0, 0, 4)])[0]) == 4
    with pytest.raises(DataError, match=message):
        rows(source)


def test_no_files(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("a,b\n")
    with pytest.raises(DataError, match=r"from_parquet found no files at .*; give a file, or a folder"):
        data.from_parquet(str(tmp_path))
    with pytest.raises(DataError, match="from_parquet got no URI"):
        data.from_parquet([])


def test_file_that_is_no_parquet(tmp_path: Path) -> None:
    write(tmp_path, "1.parquet", a=[1])
    (tmp_path / "2.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"2\.parquet is not a Parquet file: "):
        data.from_parquet(str(tmp_path))


def test_file_of_another_schema(tmp_path: Path) -> None:
    write(tmp_path, "1.parquet", a=[1])
    write(tmp_path, "2.parquet", a=[0.5])
    with pytest.raises(
        DataError, match=r"column a is double in .*2\.parquet, and int64 where the data begin"
    ):
        data.from_parquet(str(tmp_path))
    write(tmp_path, "2.parquet", b=[1])
    with pytest.raises(DataError, match=r"2\.parquet has no column a"):
        data.from_parquet(str(tmp_path))


def test_too_few_rows_for_a_batch(tmp_path: Path) -> None:
    write(tmp_path, **numbers(9))
    with pytest.raises(DataError, match="global_batch_size is 10, and the source has 9 examples, fewer than"):
        data.from_parquet(str(tmp_path)).batches(global_batch_size=10)


def _vanish(path: Path) -> None:
    path.unlink()


def _change(path: Path) -> None:
    pq.write_table(pa.table(numbers(200)), path, row_group_size=4)


def _change_in_place(path: Path) -> None:
    """The same size at a later time."""
    later_ns = path.stat().st_mtime_ns + 5_000_000_000
    os.utime(path, ns=(later_ns, later_ns))


def _damage(path: Path) -> None:
    """The same size and time: as a disk that forgets."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[4:-1000] = bytes(len(content) - 1004)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (_vanish, r"input file .*part-0\.parquet is gone since the run began; put it back, and resume"),
        (_change, r"input file .*part-0\.parquet has changed since it was opened: it had \d+ bytes, and has"),
        (_change_in_place, r"input file .*part-0\.parquet has changed since it was opened"),
        (_damage, r"cannot read row group \d of .*part-0\.parquet: "),
    ],
)
def test_file_that_goes_wrong_under_way(
    tmp_path: Path, happens: Callable[[Path], None], message: str
) -> None:
    path = write(tmp_path, **numbers(40))
    source = data.from_parquet(str(tmp_path), features=["a"], label="y")
    batches = source.batches(global_batch_size=4, seed=1, window_mb=1e-4)
    reader = batches.reader()
    reader.block(0, 1, 0, 4)
    happens(path)
    with pytest.raises(DataError, match=message):
        [reader.block(step, 1, 0, 4) for step in range(1, 10)]
