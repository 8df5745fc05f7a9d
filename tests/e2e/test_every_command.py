"""Every command on a live, a finished, a failed and a damaged run, in a folder and on S3."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raydist.cli.main import COMMANDS
from raydist.storage.run_storage import open_run
from tests.e2e.conftest import BIN, Ended, RunningRay, start_command, started_ray
from tests.support.object_store import new_bucket, s3_environ, s3_server
from tests.support.slow_job import write_slow_job

LIVE, FINISHED, FAILED, DAMAGED = "live", "finished", "failed", "damaged"
STATES = (LIVE, FINISHED, FAILED, DAMAGED)

# Commands that name no run that is kept.
WITHOUT_RUN = {
    "submit",
    "search",
    "plan",
    "compare",
    "list",
    "doctor",
    "up",
    "down",
    "guide",
}
# They continue until they are told to stop.
SERVERS = {"ui", "tensorboard"}


@dataclass(frozen=True)
class Case:
    """What a command line answers for each state: an exit code, and a piece of what it prints.

    `RUN` stands for the run's name, which is its state. A state that is missing has a test of its own below.
    """

    arguments: Sequence[str]
    expected: dict[str, tuple[int, str]]


def read(piece: str, *, damaged: tuple[int, str] = (4, "run.json is damaged")) -> dict[str, tuple[int, str]]:
    """What is expected of a command that reads: `piece` for every run whose record is whole."""
    return dict.fromkeys((LIVE, FINISHED, FAILED), (0, piece)) | {DAMAGED: damaged}


CASES = (
    Case(["status", "RUN"], read("RUN")),
    Case(["status", "RUN", "--all"], read("options")),
    Case(["diff", FINISHED, "RUN"], read("finished")),
    # What these show is not in the record. That it is damaged is told beside it.
    Case(["metrics", "RUN"], read("accuracy", damaged=(0, "run.json is damaged"))),
    Case(["metrics", "RUN", "--format", "csv"], read("accuracy", damaged=(0, "accuracy"))),
    Case(["status", "RUN", "--checkpoints"], read("committed", damaged=(0, "run.json is damaged"))),
    Case(["logs", "RUN"], read("[worker/0]", damaged=(0, "run.json is damaged"))),
    Case(["logs", "RUN", "--task", "worker/1", "--tail", "2"], read("\n", damaged=(0, "\n"))),
    Case(["download", "RUN", "page", "page.html"], read("page.html", damaged=(0, "run.json is damaged"))),
    Case(
        ["download", "RUN", "checkpoint", "copy-RUN"],
        read("checkpoint of step", damaged=(0, "checkpoint of step")),
    ),
    Case(["reproduce", "RUN"], read("raydist submit")),
    # These two have tests of their own (test_inference.py). What is exported is not in the record.
    Case(
        ["export", "RUN", "--to", "saved_model"],
        {
            LIVE: (2, "has no exported model"),
            FINISHED: (0, "saved_model"),
            FAILED: (2, "has no exported model"),
            DAMAGED: (2, "has no exported model"),
        },
    ),
    Case(
        ["predict", "RUN", "nowhere", "-o", "predicted"],
        {
            LIVE: (2, "has no exported model"),
            FINISHED: (2, "there is no such file, or folder with files"),
            FAILED: (2, "has no exported model"),
            DAMAGED: (2, "has no exported model"),
        },
    ),
    # Runs of virtual replicas have tests of their own (test_verify.py).
    Case(
        ["reproduce", "RUN", "--verify", "1"],
        {**dict.fromkeys((LIVE, FINISHED, FAILED), (2, "--virtual-replicas")), DAMAGED: (4, "is damaged")},
    ),
    Case(
        ["wait", "RUN", "--timeout", "2"],
        {
            LIVE: (3, "did not end within 2 s"),
            FINISHED: (0, "SUCCEEDED after 40 steps"),
            FAILED: (1, "FAILED after"),
            DAMAGED: (4, "run.json is damaged"),
        },
    ),
    Case(
        ["stacks", "RUN"],
        {
            LIVE: (0, "in train"),
            FINISHED: (2, "has ended: SUCCEEDED"),
            FAILED: (2, "has ended: FAILED"),
            DAMAGED: (4, "run.json is damaged"),
        },
    ),
    Case(
        ["profile", "RUN", "--steps", "2"],
        {
            LIVE: (0, "plugins/profile"),
            FINISHED: (2, "has ended: SUCCEEDED"),
            FAILED: (2, "has ended: FAILED"),
            DAMAGED: (4, "run.json is damaged"),
        },
    ),
    Case(
        ["chaos", "RUN", "--stop", "worker/1", "--for", "0.2"],
        {
            LIVE: (0, "worker/1"),
            FINISHED: (2, "SUCCEEDED"),
            FAILED: (2, "FAILED"),
            DAMAGED: (4, "run.json is damaged"),
        },
    ),
    # The live run is stopped in a test of its own.
    Case(
        ["stop", "RUN"],
        {FINISHED: (0, "SUCCEEDED"), FAILED: (0, "FAILED"), DAMAGED: (4, "run.json is damaged")},
    ),
    # The failed run is resumed in a test of its own.
    Case(
        ["resume", "RUN"],
        {LIVE: (2, "is still running"), FINISHED: (0, "SUCCEEDED"), DAMAGED: (4, "run.json is damaged")},
    ),
    # Those that have ended are deleted in a test of its own.
    Case(["delete", "RUN", "--yes"], {LIVE: (2, "is still running")}),
)
LINES = [
    pytest.param(case, state, id=f"{case.arguments[0]}-{state}") for case in CASES for state in case.expected
]


def test_every_command_is_asked() -> None:
    asked = {case.arguments[0] for case in CASES}
    assert asked | WITHOUT_RUN | SERVERS == set(COMMANDS)
    assert not asked & (WITHOUT_RUN | SERVERS)


@dataclass(frozen=True)
class Place:
    """A storage with four runs, and how commands reach it."""

    ray: RunningRay
    folder: Path
    uri: str

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [BIN / "raydist", *arguments, "--storage", self.uri]
        return start_command(command, folder=self.folder, environ=self.ray.environ)

    def run(self, *arguments: str) -> Ended:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=180)
        finally:
            process.kill()
        return Ended(code=process.returncode, out=out, err=err)

    def status(self, run: str) -> dict[str, Any]:
        ended = self.run("status", run, "--json")
        return ended.json if ended.code == 0 else {"state": None, "steps": 0}


@pytest.fixture(scope="module", params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("commands")
    if request.param == "folder":
        yield from _with_runs(Place(request.getfixturevalue("running_ray"), folder, str(folder / "runs")))
        return
    with (
        s3_server() as endpoint,
        pytest.MonkeyPatch.context() as patch,
        started_ray(tmp_path_factory.mktemp("s"), environ={**os.environ, **s3_environ(endpoint)}) as ray,
    ):
        for name, value in s3_environ(endpoint).items():  # for what the test itself reads
            patch.setenv(name, value)
        yield from _with_runs(Place(ray, folder, f"s3://{new_bucket(endpoint)}/runs"))


def _with_runs(place: Place) -> Iterator[Place]:
    job = write_slow_job(place.folder)
    address = ("--address", place.ray.address)
    for run, raise_at, code in ((FINISHED, "-1", 0), (FAILED, "14", 1), (DAMAGED, "14", 1)):
        options = ("--max-failures", "0", "-p", "pause_s=0", "-p", f"raise_at={raise_at}")
        ended = place.run("submit", job, "--name", run, *address, *options)
        assert ended.code == code, ended.err
    storage = open_run(place.uri, run=DAMAGED)
    storage.write_bytes(storage.record, storage.read_bytes(storage.record)[:100])
    live = place.run(
        "submit", job, "--name", LIVE, "--detach", *address, "-p", "pause_s=0.5", "-p", "epochs=500"
    )
    assert live.code == 0, live.err
    try:
        yield place
    finally:
        place.run("stop", LIVE)


@pytest.fixture(scope="module")
def live(place: Place) -> Place:
    """The place, once the live run has a checkpoint and metrics."""
    deadline = time.monotonic() + 240
    while not place.run("status", "--checkpoints", LIVE, "--json").json.get("checkpoints"):
        assert time.monotonic() < deadline
        time.sleep(1)
    return place


@pytest.mark.exhaustive(
    "damaged",
    "damaged0",
    "damaged1",
    "failed",
    "failed0",
    "failed1",
    "finished",
    "finished0",
    "finished1",
    "s3",
    covered_by="[live]; tests/cli/commands on kept runs; tests/storage on S3",
)
@pytest.mark.slow
@pytest.mark.parametrize(("case", "state"), LINES)
def test_command(live: Place, case: Case, state: str) -> None:
    code, piece = case.expected[state]
    ended = live.run(*[argument.replace("RUN", state) for argument in case.arguments])
    assert ended.code == code, ended.err
    assert piece.replace("RUN", state) in ended.out + ended.err
    if case.arguments[0] not in ("logs", "stacks"):  # which show what the user's code printed
        assert "Traceback" not in ended.out + ended.err


@pytest.mark.exhaustive("s3", covered_by="the same in a folder; tests/storage has each operation on S3")
@pytest.mark.slow
def test_list_has_all_four(live: Place) -> None:
    told = live.run("list", "--json").json["runs"]
    states = {run["run"]: run["state"] for run in told}
    assert states == {LIVE: "RUNNING", FINISHED: "SUCCEEDED", FAILED: "FAILED", DAMAGED: None}


@pytest.mark.exhaustive("s3", covered_by="the same in a folder; tests/storage has each operation on S3")
@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(SERVERS))
def test_server_takes_all_four(live: Place, command: str) -> None:
    process = live.start(command, "--json")
    try:
        assert process.stdout is not None
        answer = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        assert answer["url"].startswith("http://127.0.0.1:")
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.exhaustive("s3", covered_by="the same in a folder; tests/storage has each operation on S3")
@pytest.mark.slow
def test_failed_run_is_resumed_and_those_that_have_ended_are_deleted(live: Place) -> None:
    address = ("--address", live.ray.address)
    resumed = live.run("resume", FAILED, *address, "-p", "raise_at=-1")
    assert resumed.code == 0, resumed.err
    assert live.status(FAILED)["steps"] == 40
    deleted = live.run("delete", FAILED, FINISHED, DAMAGED, "--yes")
    assert deleted.code == 0, deleted.err
    assert live.run("status", FINISHED).code == 2


@pytest.mark.exhaustive("s3", covered_by="the same in a folder; tests/storage has each operation on S3")
@pytest.mark.slow
def test_live_run_is_stopped(live: Place) -> None:
    stopped = live.run("stop", LIVE)
    assert stopped.code == 0, stopped.err
    assert live.status(LIVE)["state"] == "CANCELLED"
