"""A file that several callers want to create is created once, on every storage."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from raydist.storage import local_files
from raydist.storage.claims import Contest, create_once
from raydist.storage.run_storage import RunStorage, open_run
from tests.storage.conftest import FakeClock

LOW, HIGH = "0" * 32, "f" * 32


def test_first_caller_creates_the_file_and_the_next_one_leaves_it(storage: RunStorage) -> None:
    assert create_once(storage, storage.claim(0), b"first")
    assert not create_once(storage, storage.claim(0), b"second")
    assert storage.read_bytes(storage.claim(0)) == b"first"
    assert storage.list_names(storage.contenders) == []


def test_file_system_without_hard_links_agrees_as_an_object_store_does(
    local_storage: RunStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(local_files.os, "link", refuse)
    assert local_storage.create(local_storage.claim(0), b"first") is None
    assert create_once(local_storage, local_storage.claim(0), b"first")
    assert not create_once(local_storage, local_storage.claim(0), b"second")
    assert local_storage.list_names(local_storage.claims) == ["000000.json", "contenders"]


def test_folder_that_another_process_removes_meanwhile_is_made_again(
    local_storage: RunStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, removed = local_files.os.link, []

    def remove_first(source: Path, target: Path) -> None:
        if not removed:
            removed.append(source.unlink())
            source.parent.rmdir()
        link(source, target)

    monkeypatch.setattr(local_files.os, "link", remove_first)
    assert local_storage.create(local_storage.claim(0), b"first")
    assert local_storage.read_bytes(local_storage.claim(0)) == b"first"


def test_link_whose_answer_was_lost_counts_as_made(
    local_storage: RunStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = local_files.os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(local_files.os, "link", twice)
    assert local_storage.create(local_storage.claim(0), b"first") is True


@pytest.fixture(params=["folder", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> RunStorage:
    uri = str(tmp_path / "runs") if request.param == "folder" else request.getfixturevalue("s3_uri")
    return open_run(uri, run="first")


@pytest.mark.parametrize("round_", range(3))
def test_one_of_several_contenders_creates_the_file(shared: RunStorage, round_: int) -> None:
    won: list[int] = []
    start = threading.Barrier(4)

    def contend(index: int) -> None:
        start.wait(timeout=30)
        contest = Contest(storage=shared)
        if contest.create(shared.claim(round_), str(index).encode()):
            won.append(index)

    threads = [threading.Thread(target=contend, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert shared.read_text(shared.claim(round_)) == str(won[0])
    assert shared.list_names(shared.contenders) == []


class Others:
    """Passes time instead of sleeping, and does then what other contenders would."""

    def __init__(self, storage: RunStorage, clock: FakeClock) -> None:
        self._storage, self._clock = storage, clock
        self.slept: list[list[str]] = []
        self.then: list[str] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(self._storage.list_names(self._storage.contenders))
        self._clock.advance(seconds)
        for verb in self.then:
            if verb == "withdraw":
                self._storage.delete(self._storage.contenders)
            else:
                self._storage.write_text(self._storage.claim(0), verb)
        self.then = []


@pytest.fixture
def others(local_storage: RunStorage, clock: FakeClock) -> Others:
    return Others(local_storage, clock)


@pytest.fixture
def contest(local_storage: RunStorage, clock: FakeClock, others: Others) -> Contest:
    return Contest(storage=local_storage, clock=clock, sleep=others.sleep)


def test_lower_contender_goes_first(contest: Contest, others: Others, local_storage: RunStorage) -> None:
    local_storage.write_text(local_storage.contender(LOW), "")
    others.then = ["theirs"]
    assert not contest.create(local_storage.claim(0), b"mine")
    assert others.slept[0] == [LOW]  # this one has withdrawn
    assert local_storage.read_text(local_storage.claim(0)) == "theirs"


def test_higher_contender_is_waited_for(contest: Contest, others: Others, local_storage: RunStorage) -> None:
    local_storage.write_text(local_storage.contender(HIGH), "")
    others.then = ["withdraw"]
    assert contest.create(local_storage.claim(0), b"mine")
    assert len(others.slept[0]) == 2  # this one stays, so that the higher one sees it
    assert local_storage.read_text(local_storage.claim(0)) == "mine"


def test_higher_contender_that_was_past_its_look_wins(
    contest: Contest, others: Others, local_storage: RunStorage
) -> None:
    local_storage.write_text(local_storage.contender(HIGH), "")
    others.then = ["theirs", "withdraw"]
    assert not contest.create(local_storage.claim(0), b"mine")
    assert local_storage.read_text(local_storage.claim(0)) == "theirs"


@pytest.mark.parametrize("name", [LOW, HIGH], ids=["low", "high"])
def test_what_a_dead_contender_left_is_deleted_in_the_end(
    contest: Contest, clock: FakeClock, local_storage: RunStorage, name: str
) -> None:
    local_storage.write_text(local_storage.contender(name), "")
    began_s = clock.now_s
    assert contest.create(local_storage.claim(0), b"mine")
    assert clock.now_s - began_s >= 60
    assert local_storage.list_names(local_storage.contenders) == []
