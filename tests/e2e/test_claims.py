"""Several `raydist` processes that are given one name at the same moment, on a real Ray."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from raydist.storage.claims import ClaimStore, this_process
from raydist.storage.run_storage import open_run
from raydist.storage.segments import read_events
from tests.conftest import WaitUntil
from tests.e2e.conftest import RunningRay, start_raydist, status_of

pytestmark = pytest.mark.slow

JOB = """
import raydist


@raydist.job
def train(ctx):
    ctx.report({"attempt": float(ctx.attempt)}, step=1)
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "job.py").write_text(JOB)
    return str(tmp_path / "code" / "job.py")


def at_once(
    ray: RunningRay, folder: Path, *arguments: str, count: int = 2
) -> dict[int, tuple[int, dict[str, Any]]]:
    """Runs the same command in several processes at once; returns exit code and answer by pid."""
    started = [start_raydist(ray, folder, *arguments, "--json") for _ in range(count)]
    answers = {}
    for process in started:
        with process:
            out, err = process.communicate(timeout=200)
            assert "Traceback" not in err
            answers[process.pid] = (process.returncode, json.loads(out))
    return answers


def winner_of(answers: dict[int, tuple[int, dict[str, Any]]], *, folder: Path) -> int:
    """Returns the process that drove the run to its end; all commands but its own have been told of it."""
    driver: int = status_of(folder, "one")["driver"]["pid"]  # the child of its command's process
    (winner,) = [pid for pid, (code, _) in answers.items() if code == 0]
    assert answers[winner][1]["state"] == "SUCCEEDED"
    losers = [answer for pid, answer in answers.items() if pid != winner]
    for code, told in losers:
        assert (code, told["error"]["type"]) == (2, "SpecError")
        assert (
            f"driven by process {driver} of host {this_process()['host']} since" in told["error"]["message"]
        )
    return driver


def test_one_of_several_submits_gets_the_name_and_one_of_several_resumes_takes_it_over(
    running_ray: RunningRay, job: str, tmp_path: Path
) -> None:
    first = winner_of(at_once(running_ray, tmp_path, "submit", job, "--name", "one"), folder=tmp_path)
    storage = open_run(str(tmp_path / "raydist_runs"), run="one")
    storage.write_text(storage.record, json.dumps({**status_of(tmp_path, "one"), "state": "RUNNING"}))
    claim = ClaimStore(storage).newest()
    assert claim.holder["pid"] == first

    living = dataclasses.replace(claim, holder=this_process())
    storage.write_text(storage.claim(0), living.dump())
    ((code, told),) = at_once(running_ray, tmp_path, "resume", "one", count=1).values()
    assert code == 2
    assert f"is still running (RUNNING), driven by process {os.getpid()}" in told["error"]["message"]

    storage.write_text(storage.claim(0), claim.dump())  # whose process has ended
    second = winner_of(at_once(running_ray, tmp_path, "resume", "one"), folder=tmp_path)
    record = status_of(tmp_path, "one")
    assert (record["attempts"], record["driver"]["pid"], record["claim"]) == (2, second, 1)
    states = [event["state"] for event in read_events(storage) if event["event"] == "state"]
    assert states.count("SUCCEEDED") == 2


def test_one_of_several_detached_submits_gets_the_name(
    running_ray: RunningRay, job: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    answers = at_once(running_ray, tmp_path, "submit", job, "--name", "far", "--detach")
    ((_, refused),) = [(code, told) for code, told in answers.values() if code == 2]
    ((_, accepted),) = [(code, told) for code, told in answers.values() if code == 0]
    assert accepted["run"] == "far"
    # Which one depends on whether the controller of the other one has claimed the name already.
    by_claim = r"driven by process \d+ of host .*, in the Ray at .*, since 20"
    by_ray = "a detached run of that name is running in this Ray"
    assert re.search(f"{by_claim}|{by_ray}", refused["error"]["message"])
    wait_until(lambda: status_of(tmp_path, "far")["state"] == "SUCCEEDED", timeout_s=240)
    assert status_of(tmp_path, "far")["attempts"] == 1
