from __future__ import annotations

from typing import Any

from raydist.cli.screen.run_view import incidents_of

CAUSE = "worker/1 had to leave (SIGTERM): training was restarted"


def event(name: str, at_s: float, **facts: Any) -> dict[str, Any]:
    return {"event": name, "at_s": at_s, "attempt": 0, **facts}


def test_incidents_are_those_that_interrupt_a_run() -> None:
    found = incidents_of(
        [
            {"event": "planned", "at_s": 1.0},
            event("state", 2.0, state="STARTING"),
            event("task_failed", 3.0, task="worker/1", message="killed"),
            event("task_back", 4.0, message="worker/1 was replaced after 2.0 s"),
            event("attempt", 5.0, message="worker/0 failed first"),
            event("note", 5.5, message="MLflow does not answer"),
            {"event": "planned", "at_s": 6.0},
        ]
    )
    assert [(one.event, one.at_s, one.attempt) for one in found] == [
        ("task_back", 4.0, 0),
        ("attempt", 5.0, 0),
        ("resumed", 6.0, None),
    ]


def test_restart_is_told_once_with_what_it_cost() -> None:
    began = event("restarting", 1.0, message=CAUSE)
    ended = event("restarted", 9.0, message=f"{CAUSE} from the checkpoint of step 8 after 3.0 s")
    assert [one.message for one in incidents_of([began])] == [CAUSE]
    assert [one.message for one in incidents_of([began, ended])] == [ended["message"]]


def test_events_of_another_shape_are_skipped() -> None:
    damaged: list[Any] = [
        {},
        {"event": "attempt"},
        {"event": 7, "at_s": 1.0},
        event("attempt", 1.0, message=None),
        3,
    ]
    assert incidents_of([*damaged, event("attempt", 2.0, message="kept")])[0].message == "kept"
    assert len(incidents_of(damaged)) == 0
