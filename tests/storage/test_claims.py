"""One name, one holder: who may claim a run, who is told what, and what is left of a claim."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import ClusterError, MistakeError, SpecError, StorageError
from raydist.spec.job import Resume
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.claims import Claim, ClaimStore, describe_time, this_process
from raydist.storage.filesystem import Storage
from raydist.storage.run_folder import RunFolder
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import EventWriter
from tests.support.claimants import claimants, job_for
from tests.support.records import make_record

NOW_S = 1_800_000_000.0
ELSEWHERE = {**this_process(), "host": "far", "pid": 7}


@pytest.fixture
def folder_of(local_storage: Storage) -> Callable[..., RunFolder]:
    def make(*, resume: Resume = False, now_s: float = NOW_S) -> RunFolder:
        return RunFolder.of(job_for("first", storage=local_storage.uri(), resume=resume), now=lambda: now_s)

    return make


@pytest.fixture
def claims(local_storage: RunStorage) -> ClaimStore:
    return ClaimStore(local_storage)


@pytest.fixture
def record(local_storage: RunStorage) -> Callable[..., None]:
    """Writes run.json, as of some seconds before NOW_S."""

    def write(*, age_s: float = 0.0, **facts: Any) -> None:
        store = RunRecordStore(local_storage, clock=lambda: NOW_S - age_s)
        store.replace(make_record(local_storage, **{"attempts": 2, **facts}))

    return write


def held_by(holder: dict[str, Any], *, number: int = 0, age_s: float = 0.0) -> Claim:
    return Claim(number=number, id="theirs", holder=holder, at_s=NOW_S - age_s)


def dead_process() -> dict[str, Any]:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return {**this_process(), "pid": process.pid}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "s3"])
@pytest.mark.parametrize("resume", [False, True], ids=["submit", "resume"])
def test_one_of_many_processes_gets_the_name_and_the_others_are_told_which(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, resume: bool
) -> None:
    uri = str(tmp_path) if kind == "folder" else request.getfixturevalue("s3_uri")
    num_processes, num_rounds = (4, 25) if kind == "folder" else (3, 4)
    storage = Storage.open(uri)
    with claimants(num_processes, storage=uri, resume=resume) as processes:
        for number in range(num_rounds):
            if resume:
                folder = RunStorage(storage, run=f"run-{number}")
                RunRecordStore(folder).replace(make_record(folder, state="FAILED"))
            answers = processes.race(f"run-{number}")
            (winner,) = [pid for pid, answer in answers.items() if answer == "won"]
            who = f"driven by process {winner} of host {this_process()['host']} since 20"
            losers = [answer for answer in answers.values() if answer != "won"]
            assert [answer for answer in losers if "SpecError" not in answer or who not in answer] == []
            assert storage.list_names(f"run-{number}/claims/contenders") == []


def test_dead_claim_is_taken_over_by_one_of_many_resumes(
    tmp_path: Path, claims: ClaimStore, local_storage: RunStorage
) -> None:
    claims.add(held_by(dead_process()))
    RunRecordStore(local_storage).replace(make_record(local_storage, state="RUNNING", claim=0))
    with claimants(4, storage=local_storage.uri(), resume=True) as processes:
        answers = processes.race("first")
        (winner,) = [pid for pid, answer in answers.items() if answer == "won"]
        newest = claims.newest()
        assert (newest.number, newest.holder["pid"]) == (1, winner)
        losers = [answer for answer in answers.values() if answer != "won"]
        assert [
            answer
            for answer in losers
            if f"is still running (STARTING), driven by process {winner}" not in answer
        ] == []


def test_claim_is_there_before_anything_else_is_written(
    folder_of: Callable[..., RunFolder], local_storage: Storage, claims: ClaimStore
) -> None:
    folder = folder_of()
    folder.claim()
    assert local_storage.list_names("first") == ["claims"]
    newest = claims.newest()
    assert newest.holder == this_process()
    assert (newest.number, newest.at_s, folder.claim_number) == (0, NOW_S, 0)
    folder.release()
    assert local_storage.list_names("") == []


def test_second_claim_of_the_same_process_is_refused_until_its_run_has_ended(
    folder_of: Callable[..., RunFolder], record: Callable[..., None], local_storage: RunStorage
) -> None:
    first = folder_of()
    first.claim()
    record(state="RUNNING", claim=0)
    with pytest.raises(SpecError, match="driven by process"):
        folder_of().claim()
    first.record.replace(make_record(local_storage, state="FAILED", claim=0))
    first.release()
    again = folder_of(resume=True)
    again.claim()
    assert again.claim_number == 1
    again.release()


def test_run_whose_end_could_not_be_recorded_can_be_resumed_by_the_same_process(
    folder_of: Callable[..., RunFolder], record: Callable[..., None]
) -> None:
    first = folder_of()
    first.claim()
    record(state="RUNNING", claim=0, age_s=60)
    first.release()
    again = folder_of(resume=True)
    again.claim()
    # A number of its own: run.json of before says nothing about this claim.
    assert again.claim_number == 1
    again.release()


@pytest.mark.parametrize(
    ("holder", "facts", "is_free"),
    [
        pytest.param("living", {"state": "RUNNING", "age_s": 600.0}, False, id="living-and-silent"),
        pytest.param("dead", {"state": "RUNNING"}, True, id="dead-a-moment-ago"),
        pytest.param("elsewhere", {"state": "RUNNING"}, False, id="elsewhere-and-writing"),
        pytest.param("elsewhere", {"state": "RUNNING", "age_s": 11.0}, True, id="elsewhere-and-silent"),
        pytest.param("elsewhere", {"state": "FAILED"}, True, id="elsewhere-and-ended"),
        pytest.param("living", {"state": "SUCCEEDED"}, True, id="ended"),
        pytest.param("actor", {"state": "RUNNING"}, False, id="actor-that-writes"),
        pytest.param("actor", {"state": "RUNNING", "age_s": 11.0}, True, id="actor-that-is-silent"),
        pytest.param("elsewhere", {"state": "FAILED", "claim": 2}, False, id="elsewhere-and-just-begun"),
        pytest.param("living", {"state": "FAILED", "claim": 2}, False, id="living-and-just-begun"),
        pytest.param("dead", {"state": "FAILED", "claim": 2}, True, id="died-before-its-record"),
        pytest.param("old", {"state": "FAILED", "claim": 2}, True, id="elsewhere-and-never-begun"),
        pytest.param("none", {"state": "RUNNING", "claim": None}, False, id="old-and-writing"),
        pytest.param("none", {"state": "RUNNING", "claim": None, "age_s": 11.0}, True, id="old-and-silent"),
        pytest.param("none", {"state": "RUNNING", "driver": {"host": "h", "pid": 1}}, False, id="quick"),
    ],
)  # fmt: skip
def test_run_can_be_resumed_once_nobody_drives_it(
    folder_of: Callable[..., RunFolder],
    claims: ClaimStore,
    record: Callable[..., None],
    holder: str,
    facts: dict[str, Any],
    is_free: bool,
) -> None:
    process = this_process()
    parent = {**process, "pid": 1, "start": _start_of(1)}
    holders = {
        "living": parent,
        "dead": {**process, "start": 1},
        "elsewhere": ELSEWHERE,
        "old": ELSEWHERE,
        "actor": {**process, "start": 1, "actor": "first", "address": "10.0.0.1:6379"},
    }
    if holder in holders:
        claims.add(held_by(holders[holder], number=3, age_s=301.0 if holder == "old" else 0.0))
    record(**{"claim": 3, **facts})
    folder = folder_of(resume=True)
    if is_free:
        folder.claim()
        assert folder.first_attempt == 2
        folder.release()
    else:
        with pytest.raises(
            SpecError, match=r"run first is still running \((STARTING|RUNNING)\), driven by process"
        ):
            folder.claim()


def _start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_who_drives_a_run_is_told_with_host_pid_and_time(
    folder_of: Callable[..., RunFolder], claims: ClaimStore, local_storage: Storage
) -> None:
    claims.add(held_by(ELSEWHERE))
    with pytest.raises(SpecError) as caught:
        folder_of().claim()
    assert str(caught.value) == (
        f"name is 'first', and the run of that name in {local_storage.uri()} is driven by process 7 of host "
        f"far since {describe_time(NOW_S)}; choose another --name"
    )


def test_actor_is_told_with_its_ray(
    folder_of: Callable[..., RunFolder], claims: ClaimStore, record: Callable[..., None]
) -> None:
    claims.add(held_by({**ELSEWHERE, "actor": "first", "address": "10.0.0.1:6379"}))
    record(state="RUNNING", claim=0)
    with pytest.raises(
        SpecError, match=r"process 7 of host far, in the Ray at 10\.0\.0\.1:6379, since .*raydist stop first"
    ):
        folder_of(resume=True).claim()


def test_claim_of_a_process_that_died_before_its_run_began_does_not_take_the_name(
    folder_of: Callable[..., RunFolder], claims: ClaimStore, local_storage: Storage
) -> None:
    claims.add(held_by(dead_process()))
    with pytest.raises(MistakeError, match="no run named 'first'"):
        RunFolder.open(job_for("first", storage=local_storage.uri(), resume=True))
    folder = folder_of()
    folder.claim()
    assert folder.claim_number == 1
    folder.release()


def test_name_of_a_run_that_is_there_stays_taken(
    folder_of: Callable[..., RunFolder], claims: ClaimStore, record: Callable[..., None]
) -> None:
    claims.add(held_by(dead_process()))
    record(state="SUCCEEDED", claim=0)
    with pytest.raises(
        SpecError, match="has already; choose another --name, or continue that run with --resume"
    ):
        folder_of().claim()


def test_auto_begins_where_there_is_no_run_and_goes_on_where_there_is_one(
    folder_of: Callable[..., RunFolder], record: Callable[..., None], local_storage: RunStorage
) -> None:
    job = job_for("first", storage=local_storage.uri(), resume="auto")
    first = RunFolder.open(job)
    first.claim()
    assert first.first_attempt == 0
    first.write_record(make_record(local_storage, state="FAILED", attempts=3))
    first.release()
    second = RunFolder.open(job)
    second.claim()
    assert (second.first_attempt, second.claim_number) == (3, 1)
    second.release()


def test_auto_begins_where_a_process_died_before_its_first_record(
    folder_of: Callable[..., RunFolder], claims: ClaimStore, local_storage: RunStorage
) -> None:
    claims.add(held_by(dead_process()))
    run = local_storage
    written_by_tasks = (run.token, f"{run.metrics}/0.parquet", f"{run.tensorboard}/events")
    for key in (run.event_segment(0), run.code("owner"), run.kept_code("abc"), *written_by_tasks):
        local_storage.write_bytes(key, b"")
    with pytest.raises(SpecError, match="has already"):
        folder_of().claim()
    folder = folder_of(resume="auto")
    folder.claim()
    assert (folder.first_attempt, folder.claim_number) == (0, 1)
    folder.release()


def test_auto_does_not_write_into_a_folder_of_other_files(
    folder_of: Callable[..., RunFolder], local_storage: RunStorage
) -> None:
    local_storage.write_bytes("first/photo.jpg", b"")
    with pytest.raises(SpecError, match="has already"):
        folder_of(resume="auto").claim()


@pytest.mark.parametrize("is_begun", [False, True], ids=["claimed", "running"])
def test_auto_is_refused_where_the_run_is_driven(
    folder_of: Callable[..., RunFolder], claims: ClaimStore, record: Callable[..., None], is_begun: bool
) -> None:
    claims.add(held_by(ELSEWHERE))
    if is_begun:
        record(state="RUNNING", claim=0)
    with pytest.raises(SpecError, match=r"is still running .* driven by process 7 of host far"):
        folder_of(resume="auto").claim()
    assert folder_of(resume="auto").succeeded() is None


@pytest.mark.parametrize("state", ["RUNNING", "FAILED", "CANCELLED", "SUCCEEDED"])
def test_only_a_run_that_succeeded_has_nothing_left_to_do(
    folder_of: Callable[..., RunFolder], claims: ClaimStore, record: Callable[..., None], state: str
) -> None:
    assert folder_of(resume="auto").succeeded() is None
    claims.add(held_by(ELSEWHERE))
    record(state=state, claim=0, steps=40, age_s=60)
    result = folder_of(resume="auto").succeeded()
    assert (None if result is None else result.steps) == (40 if state == "SUCCEEDED" else None)


def test_later_life_of_a_controller_knows_its_claim_until_it_is_taken_over(
    folder_of: Callable[..., RunFolder], record: Callable[..., None]
) -> None:
    actor = {**this_process(), "actor": "first", "address": "a:1"}
    first = folder_of()
    first.claim(holder=actor, id_="owner")
    record(state="RUNNING", claim=0, driver=actor, age_s=60)
    later = folder_of()
    assert later.reclaim(id_="owner")
    assert later.claim_number == 0
    resumed = folder_of(resume=True)
    resumed.claim()
    assert not folder_of().reclaim(id_="owner")
    resumed.release()


def test_holder_that_was_silent_too_long_stops_where_another_process_has_taken_over(
    local_storage: RunStorage, claims: ClaimStore
) -> None:
    now_s = NOW_S
    folder = RunFolder.of(job_for("first", storage=local_storage.uri()), now=lambda: now_s)
    folder.claim()
    folder.write_record(make_record(local_storage, state="RUNNING"))
    now_s += 60
    folder.write_record(make_record(local_storage, state="RUNNING", steps=1))  # nobody wanted it
    assert claims.add(held_by(ELSEWHERE, number=1))
    now_s += 60
    with folder.open_events() as events:
        events.append({"event": "state"})
        with pytest.raises(ClusterError, match=r"taken over by process 7 of host far since .* for 60 s"):
            folder.write_record(make_record(local_storage, state="RUNNING", steps=2))
    assert RunRecordStore(local_storage).read().steps == 1
    folder.release()
    assert local_storage.list_names("first") == ["claims", "run.json"]
    assert local_storage.list_names("first/claims") == ["000001.json"]


def test_record_of_an_ended_run_is_not_replaced_once_it_was_resumed(
    folder_of: Callable[..., RunFolder], local_storage: RunStorage
) -> None:
    first = folder_of()
    first.claim()
    ended = make_record(local_storage, state="FAILED", attempts=1)
    first.write_record(ended)
    first.write_record(ended)  # nobody has resumed it
    first.release()
    second = folder_of(resume=True)
    second.claim()
    second.write_record(make_record(local_storage, state="STARTING", attempts=2))
    with pytest.raises(ClusterError, match="has been taken over"):
        first.write_record(ended)
    assert second.record.read().attempts == 2
    second.release()


def test_claim_that_is_given_up_and_overtaken_is_lost(claims: ClaimStore) -> None:
    claims.add(held_by(ELSEWHERE, number=1))
    assert not claims.add(held_by(ELSEWHERE, number=0))
    newest = claims.newest()
    assert newest.number == 1


CLAIM = json.loads(held_by(dict(ELSEWHERE)).dump())


@pytest.mark.parametrize("resume", [False, True], ids=["submit", "resume"])
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe\x00", id="no_text"),
        pytest.param(b'{"id": "x", ', id="torn"),
        pytest.param(b"[1]", id="no_object"),
        pytest.param(b"null", id="null"),
        pytest.param(b"{}", id="no_fields"),
        pytest.param(json.dumps({**CLAIM, "at_s": "noon"}).encode(), id="time"),
        pytest.param(json.dumps({**CLAIM, "at_s": 1e300}).encode(), id="far_time"),
        pytest.param(b'{"id": "x", "at_s": NaN, "holder": {"host": "h", "pid": 1}}', id="nan"),
        pytest.param(json.dumps({**CLAIM, "holder": {"host": "h"}}).encode(), id="no_pid"),
        pytest.param(json.dumps({**CLAIM, "holder": {"host": "h", "pid": -1}}).encode(), id="negative_pid"),
        pytest.param(json.dumps({**CLAIM, "holder": {"host": "h", "pid": 1e20}}).encode(), id="huge_pid"),
        pytest.param(json.dumps({**CLAIM, "holder": "h"}).encode(), id="no_process"),
    ],
)
def test_damaged_claim_is_one_sentence_with_its_remedy(
    folder_of: Callable[..., RunFolder],
    local_storage: RunStorage,
    record: Callable[..., None],
    content: bytes,
    resume: bool,
) -> None:
    record(state="FAILED")
    local_storage.write_bytes(local_storage.claim(0), content)
    with pytest.raises(
        StorageError, match=r"claims/000000\.json is damaged: .*; .* if none does, delete that file"
    ):
        folder_of(resume=resume).claim()


def test_damaged_claim_of_a_run_that_has_ended_is_passed_over(
    folder_of: Callable[..., RunFolder], local_storage: RunStorage, record: Callable[..., None]
) -> None:
    record(state="FAILED", claim=0)
    local_storage.write_bytes(local_storage.claim(0), b"{")
    folder = folder_of(resume=True)
    folder.claim()
    assert (folder.claim_number, folder.first_attempt) == (1, 2)
    folder.release()


def test_damaged_claim_of_a_driver_that_lives_is_held_though_it_is_silent(
    folder_of: Callable[..., RunFolder], local_storage: RunStorage, record: Callable[..., None]
) -> None:
    driver = {**this_process(), "pid": 1, "start": _start_of(1)}
    record(
        state="RUNNING", claim=0, age_s=100.0, driver={key: driver[key] for key in ("host", "pid", "start")}
    )
    local_storage.write_bytes(local_storage.claim(0), b"{")
    with pytest.raises(SpecError, match=r"is still running .* driven by process 1 of host"):
        folder_of(resume=True).claim()


@pytest.mark.parametrize("content", [None, b"", b'{"state": "FAI'], ids=["missing", "empty", "torn"])
@pytest.mark.parametrize("resume", [True, "auto"])
def test_lost_record_is_rebuilt_from_checkpoints_and_events(
    folder_of: Callable[..., RunFolder],
    claims: ClaimStore,
    local_storage: RunStorage,
    content: bytes | None,
    resume: Resume,
) -> None:
    claims.add(held_by(dead_process()))
    CheckpointStore(local_storage).commit(step=7, attempt=1, files={"state": b"x"}, info={})
    events = EventWriter.open(local_storage)
    events.append({"event": "state", "attempt": 2})
    events.flush()
    if content is not None:
        local_storage.write_bytes(local_storage.record, content)
    assert folder_of(resume=resume).succeeded() is None
    folder = folder_of(resume=resume)
    folder.claim()
    assert (folder.first_attempt, folder.claim_number) == (3, 1)
    assert folder.before.steps == 7
    folder.write_record(make_record(local_storage, state="FAILED", attempts=4))
    folder.release()
    assert folder_of(resume=resume).record.read().attempts == 4
    with pytest.raises(SpecError, match="has already"):
        folder_of().claim()


def test_record_that_storage_does_not_give_is_not_rebuilt(
    folder_of: Callable[..., RunFolder], local_storage: RunStorage
) -> None:
    CheckpointStore(local_storage).commit(step=7, attempt=1, files={"state": b"x"}, info={})
    local_storage.write_bytes(f"{local_storage.record}/file", b"")
    with pytest.raises(StorageError, match=r"cannot read .*run\.json"):
        folder_of(resume=True).claim()
