from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from raydist.storage import claims
from tests.cli.conftest import Run

# Stands for a driver: records its end as a controller does, when it is interrupted.
DRIVER = """
import sys, time
from raydist.storage import own_runs
from raydist.storage.claims import this_process
from raydist.storage.run_storage import open_run
from raydist.storage.run_record import RunRecordStore
from tests.support.records import make_record

storage = open_run("raydist_runs", run="digits-1")
record = RunRecordStore(storage)
try:
    record.replace(make_record(storage, state="RUNNING", steps=4, driver=this_process()))
    own_runs.remember(storage, addresses=(), driver=this_process())
    print("up", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    record.replace(make_record(storage, state="CANCELLED", steps=5, driver=this_process()))
"""


@pytest.fixture
def starting_driver() -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as driver:
        yield driver
        driver.kill()


@pytest.fixture
def driver(starting_driver: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert starting_driver.stdout.readline() == "up\n"
    return starting_driver


def store(driver: dict[str, Any] | None) -> None:
    from raydist.storage.run_record import RunRecordStore
    from raydist.storage.run_storage import open_run
    from tests.support.records import make_record

    record = {"state": "RUNNING", **({} if driver is None else {"driver": driver})}
    storage = open_run("raydist_runs", run="digits-1")
    RunRecordStore(storage).replace(make_record(storage, **record))


@pytest.mark.usefixtures("driver")
def test_stop_interrupts_the_driver_and_waits_for_the_end(raydist: Run) -> None:
    code, out, _ = raydist("stop", "digits-1")
    assert (code, out) == (0, "run digits-1: CANCELLED after 5 steps\n")


@pytest.mark.usefixtures("starting_driver")
def test_stop_waits_for_a_run_that_is_being_submitted(raydist: Run) -> None:
    code, out, err = raydist("stop", "digits-1")
    assert (code, out) == (0, "run digits-1: CANCELLED after 5 steps\n"), err
    assert "no run named 'digits-1'" in err
    assert "waiting up to 10 s for it" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("stop", "r", "--timeout", "soon"), "--timeout is 'soon'; write seconds, or 90s, 5m, 2h"),
        (("stop", "r", "--timeout", "-1m"), "--timeout is -1m; need at least 0 seconds"),
        (("chaos", "r", "--stop", "worker/1", "--for", "x"), "--for is 'x'; write seconds, or 90s, 5m, 2h"),
    ],
)
def test_time_that_cannot_be_read_is_exit_2(raydist: Run, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = raydist(*arguments)
    assert (code, out, err) == (2, "", f"raydist: {message}\n")


@pytest.mark.usefixtures("stored_run")
def test_stop_of_a_run_that_has_ended_tells_how(raydist: Run) -> None:
    code, out, _ = raydist("stop", "digits-1")
    assert (code, out) == (0, "run digits-1: SUCCEEDED after 20 steps\n")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param(
            {"host": "elsewhere"}, "on host elsewhere; run `raydist stop digits-1` there", id="other-host"
        ),
        pytest.param({"start": 1}, "has died", id="pid-of-another-process"),
        pytest.param(None, "does not say which process", id="unknown"),
    ],
)
def test_stop_touches_no_other_process(raydist: Run, changes: dict[str, Any] | None, sentence: str) -> None:
    store(None if changes is None else {**claims.this_process(), **changes})
    code, out, err = raydist("stop", "digits-1")
    assert (code, out) == (2, "")
    assert sentence in err


def test_process_is_known_by_pid_and_start() -> None:
    this = claims.this_process()
    assert claims.is_this_host(this)
    assert claims.is_alive(this)
    assert not claims.is_alive({**this, "pid": 2**22 + 1})
