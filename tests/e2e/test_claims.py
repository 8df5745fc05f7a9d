"""Several `raydist` processes that are given one name at the same moment: real Ray, an embedded one each."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from raydist.spec.process import this_process
from raydist.storage.claims import ClaimStore
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout
from raydist.storage.segments import read_events
from tests.e2e.conftest import BIN, status_of

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


def at_once(folder: Path, *arguments: str, count: int = 2) -> dict[int, tuple[int, dict[str, Any]]]:
    """Runs the same command in several processes at once; returns exit code and answer by pid."""
    command = [BIN / "raydist", *arguments, "--address", "local", "--json"]
    started = [
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    answers = {}
    for process in started:
        with process:
            out, err = process.communicate(timeout=200)
            assert "Traceback" not in err
            answers[process.pid] = (process.returncode, json.loads(out))
    return answers


def winner_of(answers: dict[int, tuple[int, dict[str, Any]]]) -> int:
    """Returns the one that succeeded; the others have been told of it."""
    (winner,) = [pid for pid, (code, _) in answers.items() if code == 0]
    assert answers[winner][1]["state"] == "SUCCEEDED"
    losers = [answer for pid, answer in answers.items() if pid != winner]
    for code, told in losers:
        assert (code, told["error"]["type"]) == (2, "SpecError")
        assert (
            f"driven by process {winner} of host {this_process()['host']} since" in told["error"]["message"]
        )
    return winner


def test_one_of_several_submits_gets_the_name_and_one_of_several_resumes_takes_it_over(
    job: str, tmp_path: Path
) -> None:
    first = winner_of(at_once(tmp_path, "submit", job, "--name", "one"))
    storage, layout = Storage.open(str(tmp_path / "raydist_runs")), RunLayout(run="one")
    storage.write_text(layout.record, json.dumps({**status_of(tmp_path, "one"), "state": "RUNNING"}))
    claim = ClaimStore(storage, layout).newest()
    assert claim is not None
    assert claim.holder["pid"] == first

    living = dataclasses.replace(claim, holder=this_process())
    storage.write_text(layout.claim(0), living.dump())
    ((code, told),) = at_once(tmp_path, "resume", "one", count=1).values()
    assert code == 2
    assert f"still goes on (RUNNING), driven by process {os.getpid()}" in told["error"]["message"]

    storage.write_text(layout.claim(0), claim.dump())  # whose process has ended
    second = winner_of(at_once(tmp_path, "resume", "one"))
    record = status_of(tmp_path, "one")
    assert (record["attempts"], record["driver"]["pid"], record["claim"]) == (2, second, 1)
    states = [event["state"] for event in read_events(storage, layout) if event["event"] == "state"]
    assert states.count("SUCCEEDED") == 2
