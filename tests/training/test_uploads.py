"""Uploads alongside the training: one at a time, and their errors are raised once."""

from __future__ import annotations

import os
import threading

import pytest

from raydist.errors import StorageError
from raydist.training.checkpointing.uploads import Uploads
from tests.conftest import WaitUntil


def fail() -> None:
    raise StorageError("the disk is full")


def test_start_returns_while_the_upload_runs_and_wait_ends_with_it() -> None:
    uploads, go_on, done = Uploads(), threading.Event(), []
    uploads.start(lambda: go_on.wait(30) and done.append(1))  # type: ignore[func-returns-value]
    uploads.check()
    assert done == []
    go_on.set()
    uploads.wait()
    assert done == [1]


def test_upload_that_may_not_step_back_is_stored_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.setpriority", refuse)
    uploads, done = Uploads(), []
    uploads.start(lambda: done.append(1))
    uploads.wait()
    assert done == [1]


def test_training_goes_before_its_upload() -> None:
    uploads, found = Uploads(), []
    uploads.start(lambda: found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    uploads.wait()
    assert found == [min(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) + 5, 19)]


def test_next_upload_begins_once_the_one_before_is_done() -> None:
    uploads, go_on, order = Uploads(), threading.Event(), []

    def first() -> None:
        go_on.wait(30)
        order.append("first")

    uploads.start(first)
    threading.Timer(0.1, go_on.set).start()
    uploads.start(lambda: order.append("second"))
    uploads.wait()
    assert order == ["first", "second"]


@pytest.mark.parametrize("where", ["check", "wait", "start"])
def test_error_is_raised_once_with_its_type(where: str, wait_until: WaitUntil) -> None:
    uploads = Uploads()
    uploads.start(fail)
    wait_until(lambda: threading.active_count() == 1 or not alive())
    calls = {"check": uploads.check, "wait": uploads.wait, "start": lambda: uploads.start(lambda: None)}
    with pytest.raises(StorageError, match="the disk is full"):
        calls[where]()
    uploads.check()
    uploads.wait()


def test_wait_with_a_limit_gives_up() -> None:
    uploads, go_on = Uploads(), threading.Event()
    uploads.start(lambda: go_on.wait(30))  # type: ignore[arg-type, return-value]
    uploads.wait(timeout_s=0.01)
    assert alive()
    go_on.set()
    uploads.wait()
    assert not alive()


def alive() -> bool:
    return any(thread.name == "raydist-checkpoint" for thread in threading.enumerate())
