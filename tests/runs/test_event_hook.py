"""What a user's on_event may do to a run: nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from raydist.errors import RunCancelledError
from raydist.runs.hooks import GuardedHook


def test_events_are_passed_on() -> None:
    seen: list[Mapping[str, Any]] = []
    hook = GuardedHook(seen.append)
    hook({"event": "state", "state": "RUNNING"})
    assert seen == [{"event": "state", "state": "RUNNING"}]
    assert hook.notes() == ()


def test_failure_is_told_once_and_later_events_come_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def fail(event: Mapping[str, Any]) -> None:
        seen.append(event["event"])
        raise ConnectionError("the chat is away")

    hook = GuardedHook(fail)
    with caplog.at_level(logging.ERROR):
        for name in ("planned", "state", "checkpoint"):
            hook({"event": name})
    assert seen == ["planned", "state", "checkpoint"]
    (note,) = hook.notes()
    assert (
        note
        == "on_event failed for an event 'planned' (ConnectionError: the chat is away); the run continued"
    )
    (record,) = caplog.records
    assert record.exc_info is not None


def test_ctrl_c_goes_through() -> None:
    def interrupt(event: Mapping[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GuardedHook(interrupt)({"event": "progress"})


def test_hook_that_asks_for_a_stop_is_no_failure_whenever_it_does() -> None:
    def stop(event: object) -> None:
        raise RunCancelledError("pruned")

    stops: list[str] = []
    hook = GuardedHook(stop)
    hook({"event": "planned"})  # before there is anything to stop
    assert stops == []
    hook.stop_by(lambda: stops.append("early"))
    hook({"event": "report"})
    assert stops == ["early", "early"]
    assert hook.asks_for_stop
    assert hook.notes() == ()
