"""Lines of several logs are merged by the time at which they came, whoever uploads them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydist.spec.tasks import TaskId
from raydist.storage import log_times
from raydist.storage.log_times import ArrivalTimes, arrival_of, decode_marks, encode_marks
from raydist.storage.logs import LogUploader
from raydist.storage.run_storage import RunStorage
from raydist.storage.timed_logs import LogLine, TimedLogReader, read_merged


class Task:
    """A task's spool, which grows at times that the test chooses, with its uploader and reader."""

    def __init__(self, storage: RunStorage, name: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.task = TaskId.parse(name)
        self.storage = storage
        self.path = folder / self.task.path_name
        self.times = ArrivalTimes(self.path)
        self._patch = patch

    def write(self, text: str, *, at_s: float) -> None:
        with self.path.open("a") as spool:
            spool.write(text)
        os.utime(self.path, (at_s, at_s))
        self._patch.setattr(log_times.time, "time", lambda: at_s)
        self.times.note()

    def uploader(self, times: ArrivalTimes | None = None) -> LogUploader:
        return LogUploader(self.storage, task=self.task, attempt=0, spool_path=self.path, times=times)

    def reader(self) -> TimedLogReader:
        return TimedLogReader(self.storage, task=self.task, attempt=0)


@pytest.fixture
def tasks(storage: RunStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Task, Task]:
    first, second = (Task(storage, name, tmp_path, monkeypatch) for name in ("worker/0", "worker/1"))
    return first, second


def shown(lines: list[LogLine]) -> list[tuple[str, float | None, str]]:
    return [(str(line.task), line.at_s, line.text) for line in lines]


def test_lines_are_merged_by_arrival_whatever_the_uploads(tasks: tuple[Task, Task]) -> None:
    first, second = tasks
    first.write("a\n", at_s=1.0)
    second.write("b\n", at_s=2.0)
    first.write("c\nd ✓\n", at_s=3.0)
    second.uploader(second.times).flush()
    first.uploader(first.times).flush()
    second.write("e\n", at_s=4.0)
    second.uploader(second.times).flush()
    merged = read_merged([first.reader(), second.reader()], is_last=True)
    assert shown(merged) == [
        ("worker/0", 1.0, "a"),
        ("worker/1", 2.0, "b"),
        ("worker/0", 3.0, "c"),
        ("worker/0", 3.0, "d ✓"),
        ("worker/1", 4.0, "e"),
    ]


def test_salvage_of_a_killed_task_has_its_times(tasks: tuple[Task, Task]) -> None:
    task = tasks[0]
    task.write("noted\n", at_s=1.0)
    with task.path.open("a") as spool:
        spool.write("last words\n")
    os.utime(task.path, (7.0, 7.0))
    task.uploader().flush()  # of another process, which has what is kept beside the spool
    assert shown(task.reader().read_new(is_last=True)) == [
        ("worker/0", 1.0, "noted"),
        ("worker/0", 7.0, "last words"),
    ]


def test_upload_that_is_tried_again_keeps_the_times(tasks: tuple[Task, Task]) -> None:
    task = tasks[0]
    task.write("one\n", at_s=1.0)
    task.write("two\n", at_s=2.0)
    assert task.times.take(0, 8) == task.times.take(0, 8) == [(1.0, 4), (2.0, 8)]
    assert task.times.take(4, 8) == [(2.0, 4)]


def test_line_has_the_time_at_which_it_began(tasks: tuple[Task, Task]) -> None:
    task = tasks[0]
    uploader = task.uploader(task.times)
    task.write("waiting", at_s=1.0)
    uploader.flush()
    task.write(" ... done\n", at_s=60.0)
    uploader.flush()
    assert shown(task.reader().read_new(is_last=True)) == [("worker/0", 1.0, "waiting ... done")]


def test_follower_holds_an_unfinished_line_back_until_nothing_is_added(tasks: tuple[Task, Task]) -> None:
    task, reader = tasks[0], tasks[0].reader()
    uploader = task.uploader(task.times)
    task.write("one\ntw", at_s=1.0)
    uploader.flush()
    assert [line.text for line in reader.read_new(is_last=False)] == ["one"]
    task.write("o\nthree", at_s=2.0)
    uploader.flush()
    assert [line.text for line in reader.read_new(is_last=False)] == ["two"]
    assert [line.text for line in reader.read_new(is_last=False)] == ["three"]
    assert reader.read_new(is_last=False) == []


def test_log_of_an_older_raydist_has_no_times(storage: RunStorage) -> None:
    task = TaskId.parse("worker/0")
    storage.write_text(storage.log_segment(task, attempt=0, seq=0), "one\rprogress\ntwo\n")
    lines = TimedLogReader(storage, task=task, attempt=0).read_new(is_last=True)
    assert [(line.at_s, line.text) for line in lines] == [(None, "one\rprogress"), (None, "two")]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"marks": [["x"]]}', b'{"marks": 7}', b"\xff"])
def test_damaged_times_are_none(content: bytes) -> None:
    assert decode_marks(content) == []


def test_marks_are_read_back() -> None:
    marks = decode_marks(encode_marks([(1.5, 10), (2.0, 30)]))
    assert [arrival_of(marks, offset) for offset in (0, 9, 10, 29, 30)] == [1.5, 1.5, 2.0, 2.0, 2.0]
    assert arrival_of([], 0) is None


class CountingStorage(RunStorage):
    """Counts the log segments that are read."""

    num_read = 0

    def read_bytes(self, key: str) -> bytes:
        self.num_read += key.endswith(".log")
        return super().read_bytes(key)


def test_end_of_a_log_is_read_without_the_rest(local_storage: RunStorage) -> None:
    storage, task = CountingStorage(local_storage, run="first"), TaskId.parse("worker/0")
    for seq in range(100):
        at_s = float(10 * seq)
        storage.write_text(
            storage.log_segment(task, attempt=0, seq=seq), f"line {2 * seq}\nline {2 * seq + 1}\n"
        )
        storage.write_bytes(storage.log_times(task, attempt=0, seq=seq), encode_marks([(at_s, 14)]))
    tail = TimedLogReader(storage, task=task, attempt=0)
    tail.skip_to(num_lines=3, since_s=None, keep=bool)
    assert [line.text for line in tail.read_new(is_last=True)][-3:] == ["line 197", "line 198", "line 199"]
    assert storage.num_read == 2
    since = TimedLogReader(storage, task=task, attempt=0)
    since.skip_to(num_lines=None, since_s=985.0, keep=bool)
    lines = since.read_new(is_last=True)
    assert [line.text for line in lines if (line.at_s or 0.0) >= 985.0] == ["line 198", "line 199"]
    assert storage.num_read == 4
