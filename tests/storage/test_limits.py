"""What raydist does not read: what is too large, what is not a file, and what unpacks to too much."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from isal import isal_zlib

from raydist.errors import CheckpointError, StorageError
from raydist.metrics.parquet import SCHEMA
from raydist.metrics.reading import read_columns
from raydist.outcome.status import Scope
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.filesystem import Root, Storage
from raydist.storage.limits import parse_json
from raydist.storage.provenance import CodeRecord, read_kept_code
from raydist.storage.run_names import find_run, names_by_age
from raydist.storage.run_removal import list_runs
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import read_events
from tests.support.hostile_files import zip_of
from tests.support.page_runs import store_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    store_run(RunStorage(Storage.open(str(tmp_path)), run="good"))
    return tmp_path


def sparse(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 3 * 2**30)


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


PLANTED: dict[str, Callable[[Path], object]] = {
    "a link out": lambda path: path.symlink_to("/etc/passwd"),
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a FIFO": os.mkfifo,
    "a socket": listening,
    "a folder": os.mkdir,
    "3 GB of nothing": sparse,
    "deep JSON": lambda path: path.write_text("[" * 200_000),
}


@pytest.mark.parametrize("what", PLANTED)
def test_run_whose_record_is_no_record_is_damaged_and_hides_no_other(what: str, runs: Path) -> None:
    (runs / "bad").mkdir()
    PLANTED[what](runs / "bad" / "run.json")
    storage = Storage.open(str(runs))
    listing = list_runs(storage)
    assert [run.run for run in listing.runs] == ["good", "bad"]
    assert f"{runs}/bad/run.json" in listing.runs[1].error.message  # type: ignore[union-attr]
    assert find_run(storage, "@latest").run == "good"
    assert find_run(storage, "goo").run == "good"


def test_folder_named_dot_dot_in_an_object_store_is_no_run(runs: Path) -> None:
    import pyarrow.fs as pafs

    class Hostile(Storage):
        def _look(self, selector: object) -> list[pafs.FileInfo]:
            up = pafs.FileInfo(f"{runs}/..", type=pafs.FileType.Directory)
            return [*super()._look(selector), up]

    root = Root.of(str(runs), uri=str(runs), is_local=False)
    storage = Hostile(filesystem=pafs.LocalFileSystem(), root=root)
    assert names_by_age(storage) == ["good"]


@pytest.mark.parametrize("kind", ["logs/0/worker-0/000001.log", "events/000001.jsonl"])
def test_file_that_does_not_end_is_not_read(kind: str, runs: Path) -> None:
    sparse(runs / "good" / kind)
    with pytest.raises(StorageError, match=r"has more than \d+ MB, and raydist writes no such file"):
        Storage.open(str(runs)).read_bytes(f"good/{kind}")


def test_line_that_is_nested_too_deep_is_a_damaged_event(runs: Path) -> None:
    (runs / "good" / "events" / "000001.jsonl").write_text('{"event": ' + "[" * 200_000 + "\n")
    damaged: list[StorageError] = []
    events = read_events(RunStorage(Storage.open(str(runs)), run="good"), on_damage=damaged.append)
    assert events
    assert "nested too deep" in str(damaged[0])


def test_file_of_a_checkpoint_is_read_only_to_the_size_that_its_marker_says(runs: Path) -> None:
    storage = RunStorage(Storage.open(str(runs)), run="good")
    [file] = (runs / "good" / "checkpoints").glob("step-*200*/state.json")
    sparse(file)
    store = CheckpointStore(storage)
    with pytest.raises(CheckpointError, match="instead of 2"):
        store.fetch(store.committed()[0], runs / "fetched")


@pytest.mark.parametrize("values", [{"name": "loss"}, {"name": "x" * 100_000}, {"scope": "x" * 100_000}])
def test_parquet_file_that_unpacks_to_far_more_is_damaged(values: dict[str, str], runs: Path) -> None:
    row = {"run": "r", "attempt": 0, "task": "worker/0", "step": 1, "epoch": 1, "wall_time": 1.0}
    row |= {"scope": "global", "name": "loss", "value": 1.0, **values}
    num_rows = 3_000_000 if values == {"name": "loss"} else 90_000
    index = pa.array([0]).take(pa.array([0] * num_rows, pa.int32()))
    columns = [
        pa.DictionaryArray.from_arrays(index.cast(pa.int32()), pa.array([row[field.name]], field.type))
        if pa.types.is_string(field.type)
        else pa.array([row[field.name]], field.type).take(index)
        for field in SCHEMA
    ]
    file = next((runs / "good" / "metrics").iterdir())
    pq.write_table(pa.table(columns, names=SCHEMA.names), file, compression="zstd", store_schema=False)
    assert file.stat().st_size < 200_000
    damaged: list[StorageError] = []
    storage = RunStorage(Storage.open(str(runs)), run="good")
    before = pa.total_allocated_bytes()
    rows = read_columns(storage, scope=Scope.GLOBAL, on_damage=damaged.append)
    assert rows.num_rows
    assert f"{file} is damaged" in str(damaged[0])
    assert pa.total_allocated_bytes() - before < 100 * 2**20


def test_values_of_a_million_equal_rows_are_whole(runs: Path) -> None:
    """A file within the limits, whose texts repeat, is read as it was."""
    storage = RunStorage(Storage.open(str(runs)), run="good")
    names = read_columns(storage, scope=Scope.GLOBAL)["name"]
    assert set(names.to_pylist()) == {word for chunk in names.chunks for word in chunk.dictionary.to_pylist()}


def _with_flipped_byte(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"no zip", "not a zip"),
        (lambda: zip_of({"a.py": bytes(101 * 2**20)}), "unpacks to more than 100 MB"),
        (lambda: zip_of({"../a.py": b""}), "leads out of the folder"),
        (lambda: zip_of({"/a.py": b""}), "leads out of the folder"),
        (lambda: _with_flipped_byte(zip_of({"a.py": b"print()"}), 30 + len("a.py")), "."),
    ],
    ids=["no zip", "bomb", "dots", "absolute", "damaged"],
)
def test_copy_of_code_that_cannot_be_unpacked_is_damaged(
    make: Callable[[], bytes], reason: str, runs: Path
) -> None:
    content = make()
    storage, digest = RunStorage(Storage.open(str(runs)), run="good"), hashlib.sha256(content).hexdigest()
    storage.write_bytes(storage.kept_code(digest), content)
    record = CodeRecord(digest=digest, num_bytes=len(content), file=f"code/{digest}.zip")
    with pytest.raises(StorageError, match=f"is damaged: .*{reason}"):
        read_kept_code(storage, record)


@pytest.mark.parametrize(
    "content",
    [r'{"a": "\ud800"}', b'{"a": "\xed\xa0\x80"}', "[" * 250 + "]" * 250, '{"a": ' * 250 + "1" + "}" * 250],
)
def test_json_that_cannot_be_shown_or_walked_is_none(content: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"surrogates|nested too deep"):
        parse_json(content)
    assert parse_json('["\\u00e9"]') == ["é"]


@pytest.mark.parametrize(
    "changes",
    [
        *({"info": info} for info in ([], "x", None)),
        *({"files": {"a": {"size_bytes": size, "crc32": 0}}} for size in ("x", -1, 1.5, 2**61, [])),
        {"files": {"a": {"size_bytes": 1, "crc32": "x"}}},
    ],
)
def test_marker_with_values_of_other_types_is_damaged(changes: dict[str, object], runs: Path) -> None:
    marker = {"step": 300, "attempt": 1, "files": {}, "info": {}, **changes}
    summed = json.dumps(marker, sort_keys=True, separators=(",", ":")).encode()
    folder = runs / "good" / "checkpoints" / "step-300-a1"
    folder.mkdir()
    (folder / "_COMMITTED").write_text(json.dumps({**marker, "crc32": isal_zlib.crc32(summed)}))
    store = CheckpointStore(RunStorage(Storage.open(str(runs)), run="good"))
    assert [one.step for one in store.committed()] == [200, 100]


@pytest.mark.parametrize("time_s", [float("nan"), float("inf"), -1.0, 1e300])
def test_metrics_of_no_time_are_damaged(time_s: float, runs: Path) -> None:
    file = next((runs / "good" / "metrics").iterdir())
    rows = pq.read_table(file)
    times = pa.array([time_s] * rows.num_rows)
    pq.write_table(
        rows.set_column(rows.column_names.index("wall_time"), SCHEMA.field("wall_time"), times), file
    )
    damaged: list[StorageError] = []
    storage = RunStorage(Storage.open(str(runs)), run="good")
    assert read_columns(storage, scope=Scope.GLOBAL, on_damage=damaged.append).num_rows
    assert f"{file} is damaged: a wall_time is not a Unix time" in str(damaged[0])


def test_folder_that_a_link_leads_to_is_listed_only_inside_of_the_storage_and_once(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for path in (root / "r/logs/a.log", root / "kept/b.log", tmp_path / "outside/c.log"):
        path.parent.mkdir(parents=True)
        path.write_text("x")
    (root / "r/logs/out").symlink_to(tmp_path / "outside")
    (root / "r/logs/everything").symlink_to("/")
    for number in range(40):  # would be entered in each order
        (root / "r" / f"loop-{number}").symlink_to(root / "r")
    (root / "r/kept").symlink_to(root / "kept")
    found = {file.key for file in Storage.open(str(root)).list_files("r")}
    assert {"r/logs/a.log", "r/kept/b.log"} <= found
    assert not any("c.log" in key or "out/" in key for key in found)
    assert len(found) < 10
