"""Each byte of a task's log reaches storage once, whoever uploads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydist.errors import StorageError
from raydist.spec.tasks import TaskId
from raydist.storage.logs import LogUploader, list_log_tasks, read_log
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import SEGMENT_GROWS_TO_BYTES, SEGMENT_MAX_BYTES
from tests.storage.conftest import FakeClock


class Spool:
    """A task's local log with its uploaders and readers."""

    def __init__(self, storage: RunStorage, path: Path, clock: FakeClock) -> None:
        self.storage = storage
        self.path = path
        self.clock = clock
        self.task = TaskId.parse("worker/1")

    def write(self, text: str) -> None:
        with self.path.open("a") as spool:
            spool.write(text)

    def uploader(self, *, incarnation: int = 0) -> LogUploader:
        return LogUploader(
            self.storage,
            task=self.task,
            attempt=0,
            incarnation=incarnation,
            spool_path=self.path,
            clock=self.clock,
        )

    def stored(self, tail_bytes: int | None = None) -> str:
        return read_log(self.storage, task=self.task, attempt=0, tail_bytes=tail_bytes)

    def segment_names(self) -> list[str]:
        return self.storage.list_names(self.storage.task_logs(self.task, attempt=0))


@pytest.fixture
def spool(local_storage: RunStorage, tmp_path: Path, clock: FakeClock) -> Spool:
    return Spool(local_storage, tmp_path / "worker-1.log", clock)


def test_log_is_read_back_over_segments(storage: RunStorage, tmp_path: Path, clock: FakeClock) -> None:
    spool = Spool(storage, tmp_path / "worker 1.log", clock)
    uploader = spool.uploader()
    large = "x" * SEGMENT_GROWS_TO_BYTES + "\n"
    for line in ("eins\n", "zwei ✓\n", large, "drei\n", "no line end"):
        spool.write(line)
        uploader.flush()
    assert spool.segment_names() == ["000000.log", "000001.log"]
    assert spool.stored() == f"eins\nzwei ✓\n{large}drei\nno line end"


def test_tick_uploads_whole_lines_every_five_seconds(spool: Spool) -> None:
    uploader = spool.uploader()
    spool.write("one\ntw")
    uploader.tick()
    assert spool.stored() == "one\n"
    spool.write("o\nthree\n")
    spool.clock.advance(4.9)
    uploader.tick()
    assert spool.stored() == "one\n"
    spool.clock.advance(0.2)
    uploader.tick()
    assert spool.stored() == "one\ntwo\nthree\n"


def test_tick_shows_a_line_that_is_never_ended(spool: Spool) -> None:
    spool.write("waiting for peers...")
    spool.uploader().tick()
    assert spool.stored() == "waiting for peers..."


def test_tick_uploads_four_new_megabytes_at_once(spool: Spool) -> None:
    uploader = spool.uploader()
    spool.write("start\n")
    uploader.tick()
    spool.write("x" * 99 + "\n")
    uploader.tick()
    assert spool.stored() == "start\n"
    spool.write(("y" * 99 + "\n") * (SEGMENT_MAX_BYTES // 100 + 1))
    uploader.tick()
    assert len(spool.stored()) > SEGMENT_MAX_BYTES - 200


def test_large_log_is_cut_at_line_ends(spool: Spool) -> None:
    line = "z" * 999 + "\n"
    spool.write(line * 9000)
    spool.uploader().flush()
    contents = [
        spool.storage.read_bytes(spool.storage.log_segment(spool.task, attempt=0, seq=seq))
        for seq in range(3)
    ]
    assert [len(content) % 1000 for content in contents] == [0, 0, 0]
    assert spool.stored() == line * 9000


def test_tick_and_flush_without_a_spool_store_nothing(spool: Spool) -> None:
    spool.uploader().tick()
    spool.uploader().flush()
    assert spool.segment_names() == []
    assert spool.stored() == ""


def test_rest_of_a_killed_task_is_salvaged_by_another_uploader(spool: Spool) -> None:
    spool.write("before\n")
    spool.uploader().tick()
    spool.write("last words\nTraceb")
    spool.uploader().flush()
    spool.uploader().flush()
    assert spool.stored() == "before\nlast words\nTraceb"
    assert spool.segment_names() == ["000000.log"]


def test_rest_of_a_task_of_an_earlier_raydist_is_salvaged(spool: Spool) -> None:
    spool.write("before\nafter\n")
    spool.path.with_name(f"{spool.path.name}.uploaded").write_text('{"seq": 1, "offset": 7}')
    spool.storage.write_bytes(spool.storage.log_segment(spool.task, attempt=0, seq=0), b"before\n")
    spool.uploader().flush()
    assert spool.stored() == "before\nafter\n"


def test_task_killed_between_upload_and_note_repeats_no_byte(spool: Spool) -> None:
    progress_path = spool.path.with_name(f"{spool.path.name}.uploaded")
    spool.write("one\n")
    spool.uploader().tick()
    progress_before_the_kill = progress_path.read_text()
    spool.write("two\n")
    spool.uploader().tick()
    progress_path.write_text(progress_before_the_kill)
    spool.write("three")
    spool.uploader().flush()
    assert spool.stored() == "one\ntwo\nthree"


def test_upload_that_failed_is_made_up_for(spool: Spool) -> None:
    uploader = spool.uploader()
    spool.storage.write_bytes(spool.storage.logs, b"a file in the way")
    spool.write("one\n")
    with pytest.raises(StorageError):
        uploader.tick()
    spool.storage.delete(spool.storage.logs)
    spool.write("two\n")
    uploader.tick()
    assert spool.stored() == "one\ntwo\n"


def test_character_cut_in_two_by_segments_is_joined(spool: Spool) -> None:
    first, second = "✓".encode()[:1], "✓".encode()[1:]
    spool.storage.write_bytes(spool.storage.log_segment(spool.task, attempt=0, seq=0), first)
    spool.storage.write_bytes(spool.storage.log_segment(spool.task, attempt=0, seq=1), second)
    assert spool.stored() == "✓"


@pytest.mark.parametrize(
    ("tail_bytes", "expected"),
    [
        pytest.param(100, "one\ntwo\nthree\n", id="more_than_all"),
        pytest.param(14, "one\ntwo\nthree\n", id="all"),
        pytest.param(13, "two\nthree\n", id="cut_in_the_first_line"),
        pytest.param(10, "two\nthree\n", id="at_a_line_start"),
        pytest.param(9, "three\n", id="just_less"),
        pytest.param(3, "ee\n", id="less_than_a_line"),
        pytest.param(0, "", id="nothing"),
    ],
)
def test_tail_begins_at_a_line_start(spool: Spool, tail_bytes: int, expected: str) -> None:
    uploader = spool.uploader()
    for line in ("one\n", "two\n", "three\n"):
        spool.write(line)
        uploader.flush()
    assert spool.stored(tail_bytes) == expected


def test_logs_are_listed_by_attempt_and_task(storage: RunStorage) -> None:
    for attempt, name in ((10, "worker/0"), (2, "worker/10"), (2, "worker/9"), (2, "chief/0")):
        storage.write_bytes(storage.log_segment(TaskId.parse(name), attempt=attempt, seq=0), b"x")
    storage.write_bytes(f"{storage.logs}/2/notes.txt", b"no task")
    listed = [(attempt, str(task)) for attempt, task in list_log_tasks(storage)]
    assert listed == [(2, "chief/0"), (2, "worker/9"), (2, "worker/10"), (10, "worker/0")]


def test_log_of_a_replaced_process_comes_before_that_of_the_next_one(spool: Spool, tmp_path: Path) -> None:
    later = Spool(spool.storage, tmp_path / "next.log", spool.clock)
    later.write("second turn\n")
    later.uploader(incarnation=1).flush()
    spool.write("first turn\n")
    spool.uploader().flush()  # a salvage may come late
    assert spool.stored() == "first turn\nsecond turn\n"
    assert spool.stored(tail_bytes=12) == "second turn\n"
