from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from raydist.storage.claims import this_process
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from raydist.storage.segments import EventWriter
from tests.cli.conftest import ON_EACH_STORAGE, Run
from tests.support.records import make_record

LIVE: dict[str, Any] = {
    "state": "RUNNING",
    "attempts": 2,
    "steps": 40,
    "metrics": {"loss": 0.5},
    "best": {"name": "loss", "value": 0.25, "step": 30},
    "progress": {"epoch": 1, "num_epochs": 3, "num_steps": 120, "steps_per_s": 4.0, "eta_s": 20.0},
    "tasks": [
        {"task": "worker/0", "state": "RUNNING", "steps": 40, "lag_steps": 0, "steps_per_s": 4.0, "pid": 7},
        {"task": "worker/1", "state": "RUNNING", "steps": 37, "lag_steps": 3, "steps_per_s": 3.5, "pid": 8},
    ],
    "notes": ["worker/1 failed first", "the seed is 0", "detail: the order is raydist's"],
    "timings": {"total": 65.0},
    "spec": {
        "params": {"epochs": 3},
        "entry_point": {"file": "digits.py", "module": None, "function": "train"},
    },
}


@pytest.fixture
def live(runs_uri: str) -> RunStorage:
    """A run that this process drives, in its second attempt."""
    storage = open_run(runs_uri, run="digits-1")
    RunRecordStore(storage).replace(make_record(storage, **LIVE, driver=this_process()))
    events = EventWriter.open(storage)
    events.append({"event": "attempt", "at_s": 1000.0, "attempt": 0, "message": "worker/1 failed first"})
    events.flush()
    return storage


@ON_EACH_STORAGE
def test_status_of_a_live_run_shows_progress_lag_and_restarts(raydist: Run, live: RunStorage) -> None:
    code, out, _ = raydist("status", "@latest", "--storage", live.uri())
    assert code == 0
    facts = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line}
    assert facts["job"] == "digits.py:train"
    assert facts["params"] == "epochs=3"
    assert facts["duration"] == "0:01:05"
    assert facts["steps"] == "40 of 120, 1 of 3 epochs done, 4.0 steps/s, ETA 0:00:20"
    assert facts["best"] == "loss 0.25 at step 30"
    assert facts["worker/1"].split()[:4] == ["RUNNING", "37", "3", "3.5"]
    restarts = [line for line in out.splitlines() if line.startswith("restart: ")]
    assert len(restarts) == 1
    assert restarts[0].endswith("attempt 0  worker/1 failed first")
    assert [line for line in out.splitlines() if line.startswith("note: ")] == ["note: the seed is 0"]
    assert "as of 0:00:0" in out


def test_all_of_status_shows_what_asks_nothing_of_the_user(raydist: Run, live: RunStorage) -> None:
    asked = ("status", "digits", "--storage", live.uri())
    assert "the order is raydist's" not in raydist(*asked)[1]
    assert "\ndetail: the order is raydist's\n" in raydist(*asked, "--all")[1]


def test_status_json_of_a_live_run(raydist: Run, live: RunStorage) -> None:
    told = json.loads(raydist("status", "digits", "--storage", live.uri(), "--json")[1])
    assert told["progress"]["eta_s"] == 20.0
    assert told["tasks"][1]["lag_steps"] == 3
    assert (told["job"], told["params"], told["duration_s"]) == ("digits.py:train", {"epochs": 3}, 65.0)
    assert told["restarts"] == [
        {"event": "attempt", "at_s": 1000.0, "attempt": 0, "message": "worker/1 failed first"}
    ]


SLOW = "worker/1 is 2.5 times slower than the median of the tasks"


@pytest.mark.parametrize("is_over", [False, True])
def test_status_names_stragglers_once_and_shows_the_waits(
    raydist: Run, live: RunStorage, is_over: bool
) -> None:
    straggler = {
        "task": "worker/1",
        "cause": "data",
        "times_slower": 2.5,
        "message": SLOW,
        "is_over": is_over,
    }
    waits = ({"collective_wait": 0.61}, {"input_wait": 0.5, "collective_wait": 0.02})
    tasks = [{**task, **wait} for task, wait in zip(LIVE["tasks"], waits, strict=True)]
    record = {**LIVE, "tasks": tasks, "stragglers": [straggler], "notes": [SLOW, "the seed is 0"]}
    RunRecordStore(live).replace(make_record(live, **record, driver=this_process()))
    lines = raydist("status", "@latest", "--storage", live.uri())[1].splitlines()
    assert [line for line in lines if SLOW in line] == [f"straggler: {SLOW}"]
    assert ("straggler: worker/1 is as fast as the others again" in lines) is is_over
    cells = {line.split()[0]: line.split() for line in lines if line.startswith("worker/")}
    assert (cells["worker/0"][5:7], cells["worker/1"][5:7]) == (["-", "61%"], ["50%", "2%"])
    told = json.loads(raydist("status", "@latest", "--storage", live.uri(), "--json")[1])
    assert told["stragglers"] == [straggler]
    assert told["tasks"][1]["input_wait"] == 0.5


def test_status_names_damaged_events_and_shows_the_rest(raydist: Run, live: RunStorage) -> None:
    live.write_bytes(live.event_segment(7), b"{")
    code, out, _ = raydist("status", "digits-1", "--storage", live.uri())
    assert code == 0
    assert "restarts are unknown: " in out
    assert "000007.jsonl is damaged" in out
    assert "40 of 120" in out


def test_run_whose_driver_has_died_says_how_to_go_on(raydist: Run, live: RunStorage) -> None:
    dead = {"host": "elsewhere", "pid": 1, "start": 1}
    RunRecordStore(live, clock=lambda: time.time() - 60).replace(make_record(live, **LIVE, driver=dead))
    out = raydist("status", "digits-1", "--storage", live.uri())[1]
    resume = f"`raydist resume digits-1 --storage {live.uri()}`"
    assert f"no process drives it any more; {resume} continues it" in out
    assert (
        json.loads(raydist("status", "digits-1", "--storage", live.uri(), "--json")[1])["is_driven"] is False
    )


def test_watch_shows_progress_until_the_end(raydist: Run, live: RunStorage) -> None:
    def go_on() -> None:
        store = RunRecordStore(live)
        time.sleep(1.5)
        store.replace(make_record(live, **{**LIVE, "steps": 80, "attempts": 3}))
        time.sleep(1.5)
        store.replace(make_record(live, **{**LIVE, "steps": 120, "state": "SUCCEEDED"}))

    thread = threading.Thread(target=go_on)
    thread.start()
    code, out, _ = raydist("status", "digits-1", "--storage", live.uri(), "-w")
    thread.join()
    assert code == 0
    assert out.splitlines()[0] == "attempt 1  epoch 2/3  step 40/120  4.0 steps/s  loss 0.5  0:01:05"
    assert "attempt 2  epoch 2/3  step 80/120" in out
    assert "state       SUCCEEDED" in out


def test_watch_of_a_run_that_has_ended_ends_at_once(raydist: Run, stored_run: dict[str, Any]) -> None:
    code, out, _ = raydist("status", "digits-1", "-w")
    assert (code, "state       SUCCEEDED" in out) == (0, True)


def test_run_of_an_older_raydist_is_shown(raydist: Run, live: RunStorage) -> None:
    old = json.loads(live.read_text(live.record))
    for name in ("best", "progress", "claim"):
        del old[name]
    for task in old["tasks"]:
        del task["lag_steps"], task["steps_per_s"], task["incarnation"]
    live.write_text(live.record, json.dumps(old))
    code, out, _ = raydist("status", "digits-1", "--storage", live.uri())
    assert code == 0
    assert "steps       40\n" in out


@pytest.mark.parametrize("is_over", [False, True])
def test_status_tells_of_a_slow_link_once_for_both_of_its_ends(
    raydist: Run, live: RunStorage, is_over: bool
) -> None:
    sentence = "the network of worker/0 and worker/1 is slow: a round trip takes 40 ms"
    ends = [
        {"task": f"worker/{index}", "cause": "network", "times_slower": 1.0, "message": sentence}
        for index in range(2)
    ]
    stragglers = [{**one, "is_over": is_over} for one in ends]
    record = {**LIVE, "stragglers": stragglers, "notes": [sentence]}
    RunRecordStore(live).replace(make_record(live, **record, driver=this_process()))
    lines = raydist("status", "@latest", "--storage", live.uri())[1].splitlines()
    again = [f"straggler: the network of worker/{index} is as fast as the others again" for index in range(2)]
    told = [line for line in lines if "network" in line]
    assert told == [f"straggler: {sentence}", *(again if is_over else [])]
