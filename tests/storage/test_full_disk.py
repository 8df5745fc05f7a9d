"""A full disk is one clear error; what was whole stays whole, and nothing half-written is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydist.errors import StorageError
from raydist.metrics.parquet import MetricsWriter
from raydist.outcome.status import MetricRow, Scope
from raydist.spec.tasks import TaskId
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.filesystem import Storage
from raydist.storage.logs import LogUploader, read_log
from raydist.storage.run_storage import RunStorage, open_run
from raydist.storage.segments import EventWriter, read_events
from tests.support.disks import mounted_disk
from tests.support.metric_rows import read_rows

FILES = {"optimizer.npz": b"m" * 300_000, "state.json": b"{}", "weights.npz": b"w" * 300_000}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk", size="1m") as disk:
        yield disk


@pytest.fixture
def storage(disk: Path) -> RunStorage:
    return open_run(str(disk), run="first")


def fill(disk: Path) -> Path:
    """Takes all space that is left; deleting the file gives it back."""
    filler = disk / "filler"
    with filler.open("wb") as target:
        os.posix_fallocate(target.fileno(), 0, shutil.disk_usage(disk).free)
    return filler


def as_bytes(folder: Path) -> dict[str, bytes | Path]:
    return dict(FILES)


def as_local_files(folder: Path) -> dict[str, bytes | Path]:
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in FILES}


@pytest.mark.parametrize("fills_under_way", [False, True])
@pytest.mark.parametrize("files", [as_bytes, as_local_files])
def test_checkpoint_that_does_not_fit_is_one_error_and_the_one_before_stays_whole(
    disk: Path,
    storage: RunStorage,
    tmp_path: Path,
    files: Callable[[Path], dict[str, bytes | Path]],
    fills_under_way: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = CheckpointStore(storage)
    store.commit(step=10, attempt=0, files=files(tmp_path))
    files_before = sorted(disk.rglob("*"))
    if fills_under_way:
        free_bytes = iter([2**30])  # what it is asked for before anything is written
        real = Storage.free_bytes
        monkeypatch.setattr(
            Storage, "free_bytes", lambda self, key: next(free_bytes, None) or real(self, key)
        )
    with pytest.raises(StorageError) as caught:
        store.commit(step=20, attempt=0, files=files(tmp_path))
    assert str(caught.value) == (
        f"no space left for the checkpoint {disk}/first/checkpoints/step-20-a0: it takes 0.6 MB, and 0.4 MB "
        "are free; free some space there, lower --keep, or choose another --storage, and continue with "
        "--resume "
        "from the checkpoint before"
    )
    assert sorted(disk.rglob("*")) == files_before
    found = store.latest_whole(fetch_to=tmp_path / "restored")
    assert found.damaged == ()
    assert {file.name: file.read_bytes() for file in (tmp_path / "restored").iterdir()} == FILES


def test_checkpoint_that_cannot_fit_takes_no_space_from_other_writers(
    disk: Path, storage: RunStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(storage)
    store.commit(step=10, attempt=0, files=FILES)
    monkeypatch.setattr(Storage, "write_bytes", lambda *_, **__: pytest.fail("written"))
    with pytest.raises(StorageError, match="no space left for the checkpoint"):
        store.commit(step=20, attempt=0, files=FILES)


def test_space_is_asked_for_where_the_checkpoint_goes(disk: Path, storage: RunStorage) -> None:
    with mounted_disk(disk / storage.run, size="8m"):  # as users give a run another disk
        fill(disk)
        store = CheckpointStore(storage)
        assert store.read(store.commit(step=10, attempt=0, files=FILES)) == FILES


@pytest.mark.parametrize(
    "found",
    [lambda self, key: None, lambda self, key: (_ for _ in ()).throw(StorageError("Stale file handle"))],
    ids=["no-size", "cannot-look"],
)
def test_checkpoint_is_stored_where_nothing_tells_what_fits(
    storage: RunStorage, monkeypatch: pytest.MonkeyPatch, found: Callable[..., int | None]
) -> None:
    monkeypatch.setattr(Storage, "free_bytes", found)
    store = CheckpointStore(storage)
    assert store.read(store.commit(step=10, attempt=0, files=FILES)) == FILES


def test_file_system_without_a_size_has_no_limit(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "ram", size=None) as ram:
        assert Storage.open(str(ram)).free_bytes("run/x") is None


def test_checkpoint_fits_again_once_there_is_space(disk: Path, storage: RunStorage) -> None:
    filler, store = fill(disk), CheckpointStore(storage)
    with pytest.raises(StorageError, match="no space left for the checkpoint"):
        store.commit(step=10, attempt=0, files=FILES)
    filler.unlink()
    assert store.read(store.commit(step=10, attempt=0, files=FILES)) == FILES


def test_writers_keep_what_does_not_fit_and_store_it_once_afterwards(
    disk: Path, storage: RunStorage, task: TaskId, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("a line\n" * 1000)
    events = EventWriter.open(storage)
    metrics = MetricsWriter.open(storage, task=task, attempt=0)
    log = LogUploader(storage, task=task, attempt=0, spool_path=tmp_path / "log")
    row = MetricRow(
        run="first", attempt=0, task=task, step=1, epoch=None, wall_time=1.0, scope=Scope.GLOBAL, name="loss",
        value=0.5,
    )  # fmt: skip
    events.append({"text": "x" * 5000})
    metrics.append([row])
    filler = fill(disk)
    for writer in (events, metrics, log):
        with pytest.raises(StorageError, match="No space left on device; free some space there"):
            writer.flush()
    filler.unlink()
    for writer in (events, metrics, log):
        writer.flush()
        writer.flush()
    assert read_events(storage) == [{"text": "x" * 5000}]
    assert read_rows(storage) == [row]
    assert read_log(storage, task=task, attempt=0) == "a line\n" * 1000
    assert list(disk.rglob(".*.tmp")) == []


def test_restore_onto_a_full_local_disk_names_that_disk(disk: Path, local_storage: RunStorage) -> None:
    store = CheckpointStore(local_storage)
    store.commit(step=10, attempt=0, files=FILES)
    fill(disk)
    with pytest.raises(StorageError, match=rf"cannot write {disk}/.*: No space left on device"):
        store.latest_whole(fetch_to=disk / "restored")
    assert list((disk / "restored").iterdir()) == []
