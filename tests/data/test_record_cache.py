"""RecordCache: several processes write and read it, and none reads what is torn, or of another file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raydist import data
from raydist.data import record_cache
from raydist.data.record_cache import RecordCache
from tests.support.disks import mounted_disk

WRITE = """
import sys
from raydist.data.record_cache import RecordCache
cache = RecordCache.on_disk("key", 3000, max_bytes=float("inf"))
for number in range(0, 3000, 3):
    cache.put(range(number, number + 3), [str(at).encode() * (at % 50) for at in range(number, number + 3)])
    if number == 300:
        print(flush=True)
        sys.stdin.read()
"""


def record(number: int) -> bytes:
    return str(number).encode() * (number % 50)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYDIST_CACHE", str(tmp_path))
    return tmp_path / "examples"


def on_disk(key: str = "key", num_records: int = 3000, max_bytes: float = float("inf")) -> RecordCache:
    return RecordCache.on_disk(key, num_records, max_bytes=max_bytes)


def test_two_processes_write_at_once_and_what_a_killed_one_left_is_read(root: Path) -> None:
    command, pipe = [sys.executable, "-c", WRITE], subprocess.PIPE
    with ExitStack() as stack:
        writers = [stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe)) for _ in range(3)]
        for writer in writers:
            writer.stdout.readline()  # type: ignore[union-attr]
        writers[0].kill()
    assert [writer.returncode for writer in writers] == [-signal.SIGKILL, 0, 0]
    cache = on_disk()
    assert cache.has(np.arange(3000)).all()
    assert [cache.get(number) for number in range(3000)] == [record(number) for number in range(3000)]


def test_torn_record_is_missing_and_can_be_written_again(root: Path) -> None:
    on_disk().put([1, 2], [b"first", b"second"])
    with (root / "key" / "records").open("r+b") as file:
        file.truncate(len(b"firstsec"))  # as after a loss of power
    cache = on_disk()
    assert [cache.get(number) for number in range(3)] == [None, b"first", None]
    cache.put([2], [b"second"])
    assert on_disk().get(2) == b"second"


@pytest.mark.slow
def test_full_disk_ends_the_writing_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_cache, "_FREE_SHARE", -1)
    with mounted_disk(tmp_path / "disk", size="64k") as disk:
        monkeypatch.setenv("RAYDIST_CACHE", str(disk))
        cache = on_disk(num_records=8)
        for number in range(8):
            cache.put([number], [bytes([number]) * 15_000])
        assert cache.is_full
        kept = [cache.get(number) for number in range(8)]
    assert kept[:2] == [bytes([number]) * 15_000 for number in range(2)]
    assert kept[-1] is None


def test_room_is_made_by_removing_what_no_process_uses(
    root: Path, caplog: pytest.LogCaptureFixture, wait_until: Callable[..., None]
) -> None:
    for key in ("old", "new"):
        subprocess.run([sys.executable, "-c", WRITE.replace("key", key)], input=b"", check=True, stdout=-3)
    os.utime(root / "old" / "slots", (0, 10**9))
    os.utime(root / "new" / "slots")
    used = on_disk("used", max_bytes=2e5)  # opening one removes what was not opened for a week
    assert sorted(path.name for path in root.iterdir()) == ["new", "used"]
    used.put([0], [bytes(100_000)])
    assert sorted(path.name for path in root.iterdir()) == ["used"]
    other = on_disk("other", max_bytes=2e5)
    other.put([0], [bytes(100_001)])
    assert other.get(0) is None
    assert f"the cache of examples in {root} takes no more: max_gb=0.0002 is reached" in caplog.text
    assert used.get(0) == bytes(100_000)


def test_folder_that_others_can_write_to_is_not_used(root: Path) -> None:
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(OSError, match="others can write to"):
        on_disk()


def test_changed_file_and_other_options_are_another_cache(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"

    def written(rows: list[float]) -> os.stat_result:
        pq.write_table(pa.table({"a": rows, "b": rows}), path, compression="NONE", use_dictionary=False)
        return path.stat()

    def read(**options: object) -> list[float]:
        options = {"columns": ["a"], **options}
        batches = data.from_parquet(str(path), **options).batches(global_batch_size=3, shuffle=False).cached()  # type: ignore[arg-type]
        [values] = batches.reader().block(0, 1, 0, 3)
        return [float(value) for value in values.reshape(-1)]

    def num_caches() -> int:
        return len(list(root.iterdir()))

    before = written([1.0, 2.0, 3.0])
    assert [read(), read(), num_caches()] == [[1, 2, 3]] * 2 + [1]
    after = written([1.0, 2.0, 4.0])
    assert (read(), num_caches()) == ([1, 2, 4], 2)
    assert after.st_size == before.st_size
    written([1.0, 2.0, 5.0])
    os.utime(path, ns=(after.st_atime_ns, after.st_mtime_ns))
    assert (read(), num_caches()) == ([1, 2, 5], 3)
    assert (read(columns=["b"]), num_caches()) == ([1, 2, 5], 4)
