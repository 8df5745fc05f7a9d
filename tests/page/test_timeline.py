from __future__ import annotations

from typing import Any

from raydist.page.timeline import timeline
from tests.support.page_runs import BEGUN_S, TASKS, events


def shown(told: list[dict[str, Any]], *, now_s: float = 99.0) -> dict[str, Any]:
    return timeline(told, tasks=dict.fromkeys(TASKS, ""), begun_s=BEGUN_S, now_s=BEGUN_S + now_s)


def bars_of(line: dict[str, Any], task: str) -> list[tuple[Any, ...]]:
    (row,) = [row for row in line["rows"] if row["task"] == task]
    return [
        (bar["stage"], bar["from_s"] - BEGUN_S, bar["to_s"] - BEGUN_S, bar["end"], bar["attempt"])
        for bar in row["bars"]
    ]


def test_task_waits_starts_trains_and_is_lost() -> None:
    assert bars_of(shown(events()), "worker/1") == [
        ("waiting", 0, 2, "", 0),
        ("starting", 2, 8, "", 0),
        ("running", 8, 20, "failed", 0),
        ("waiting", 22, 24, "", 1),
        ("starting", 24, 30, "", 1),
        ("running", 30, 58, "finished", 1),
    ]


def test_task_that_is_stopped_ends_with_its_attempt() -> None:
    assert bars_of(shown(events()), "worker/0")[2] == ("running", 8, 22, "stopped", 0)


def test_line_ends_with_the_run_and_marks_its_failures() -> None:
    line = shown(events())
    assert (line["begun_s"], line["end_s"]) == (BEGUN_S, BEGUN_S + 60)
    assert [(mark["kind"], mark["task"]) for mark in line["marks"]] == [("task_failed", "worker/1")]
    assert [attempt["attempt"] for attempt in line["attempts"]] == [0, 1]


def test_bars_of_a_run_that_goes_on_end_now() -> None:
    line = shown(events()[:6], now_s=11.0)
    assert bars_of(line, "worker/0")[-1] == ("running", 8, 11, "running", 0)


def test_task_whose_last_event_is_not_stored_yet_trains_as_its_state_says() -> None:
    told, states = events()[:6], dict.fromkeys(TASKS, "RUNNING")
    last = max(index for index, event in enumerate(told) if event.get("state") == "RUNNING")
    line = timeline(told[:last], tasks=states, begun_s=BEGUN_S, now_s=BEGUN_S + 11.0)
    assert {bars_of(line, task)[-1][0] for task in TASKS} == {"running"}
    assert {bars_of(line, task)[-1][-2:] for task in TASKS} == {("running", 0)}


def test_replaced_task_waits_again_as_another_process() -> None:
    told = events()[:6]
    for at_s, state in ((12, "PENDING"), (13, "STARTING"), (14, "RUNNING")):
        event = {"event": "task", "at_s": BEGUN_S + at_s, "task": "worker/1", "state": state}
        told.append({**event, "attempt": 0, "incarnation": 1, "host": "h2"})
    (row,) = [row for row in shown(told, now_s=20.0)["rows"] if row["task"] == "worker/1"]
    assert [(bar["stage"], bar["incarnation"]) for bar in row["bars"]] == [
        ("waiting", 0),
        ("starting", 0),
        ("running", 0),
        ("waiting", 1),
        ("starting", 1),
        ("running", 1),
    ]


def test_run_of_an_older_raydist_shows_what_its_attempts_did() -> None:
    line = shown([event for event in events() if event["event"] != "task"])
    assert bars_of(line, "worker/1") == [
        ("starting", 0, 8, "", 0),
        ("running", 8, 20, "failed", 0),
        ("starting", 22, 30, "", 1),
        ("running", 30, 60, "stopped", 1),
    ]


def test_run_without_events_has_an_empty_line() -> None:
    assert shown([], now_s=5.0) == {
        "begun_s": BEGUN_S,
        "end_s": BEGUN_S + 5,
        "rows": [],
        "marks": [],
        "attempts": [],
    }


def test_event_that_is_not_as_raydist_writes_it_is_passed_over() -> None:
    odd: list[dict[str, Any]] = [
        {},
        *({"event": "state", "at_s": at_s, "state": "STARTING"} for at_s in ("now", 10**400, 1e300, -1)),
        {"event": "task", "at_s": BEGUN_S, "task": 7, "state": "RUNNING"},
        {"event": "task", "at_s": BEGUN_S, "task": "worker/9", "state": ["RUNNING"]},
    ]
    assert shown([*odd, *events()])["rows"] == shown(events())["rows"]
