"""Commands that are given right after `submit` wait for the run to exist."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import open_run
from tests.cli.conftest import Run
from tests.support.records import make_record

OVER = "has ended: SUCCEEDED"


@contextmanager
def created_soon(**facts: object) -> Iterator[None]:
    """Makes the run a moment after the block has begun."""

    def create() -> None:
        storage = open_run("raydist_runs", run="digits-1")
        RunRecordStore(storage).replace(make_record(storage, **{"state": "SUCCEEDED", **facts}))

    timer = threading.Timer(0.3, create)
    timer.start()
    yield
    timer.join()


@pytest.mark.parametrize("name", ["digits-1", "@latest"])
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("wait",), (0, "run digits-1: SUCCEEDED")),
        (("status", "-w"), (0, "state")),
        (("logs", "-f"), (0, "")),
        (("chaos", "--kill", "worker/1"), (2, OVER)),
    ],
    ids=lambda value: str(value[0]),
)
def test_command_waits_for_its_run(
    raydist: Run, name: str, arguments: tuple[str, ...], told: tuple[int, str]
) -> None:
    with created_soon():
        code, out, err = raydist(arguments[0], name, *arguments[1:])
    assert (code, told[1] in out + err) == (told[0], True), err
    assert "; waiting up to 10 s for it\n" in err


def test_run_that_does_not_come_is_told_at_the_end(raydist: Run) -> None:
    code, _, err = raydist("wait", "digits-1", "--wait", "0.3s")
    assert (code, err.count("no run named 'digits-1'"), "waiting up to 0.3 s for it" in err) == (2, 2, True)


@pytest.mark.parametrize("arguments", [("status",), ("logs",), ("wait", "--wait", "0")], ids=str)
def test_other_commands_do_not_wait(raydist: Run, arguments: tuple[str, ...]) -> None:
    code, _, err = raydist(arguments[0], "digits-1", *arguments[1:])
    assert (code, "waiting" in err) == (2, False)


def test_wait_ends_with_its_timeout_where_there_is_no_run(raydist: Run) -> None:
    assert "waiting up to 0.2 s for it" in raydist("wait", "digits-1", "--timeout", "0.2s")[2]


def test_fault_waits_for_the_tasks_of_a_run_that_starts(raydist: Run) -> None:
    storage = open_run("raydist_runs", run="digits-1")
    RunRecordStore(storage).replace(make_record(storage, state="STARTING"))
    with created_soon(state="FAILED"):
        code, _, err = raydist("chaos", "digits-1", "--kill", "worker/1")
    assert (code, "has ended: FAILED" in err) == (2, True)
