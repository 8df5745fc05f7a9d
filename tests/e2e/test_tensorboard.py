"""`raydist tensorboard` over a real run: what its HTTP server answers, and that Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from raydist.outcome.status import Scope
from raydist.storage.run_storage import open_run
from tests.conftest import WaitUntil
from tests.support.metric_rows import read_rows
from tests.support.slow_job import write_slow_job


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    uri: str = str(tmp_path / "runs") if request.param == "folder" else request.getfixturevalue("s3_uri")
    return uri


def ask(url: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{url}/data/{path}", data=data, headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())


def last_loss(storage: str) -> float:
    """Returns what the run's own metrics have."""
    rows = read_rows(open_run(storage, run="slow-1"))
    return [row.value for row in rows if row.name == "loss" and row.scope is Scope.GLOBAL][-1]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "raydist.cli.main", *arguments]


@pytest.mark.exhaustive("s3", covered_by="the same in a folder; tests/storage has each operation on S3")
@pytest.mark.slow
def test_tensorboard_shows_a_run(storage: str, tmp_path: Path, wait_until: WaitUntil) -> None:
    options = ("--storage", storage, "--address", "local", "--json", "-p", "pause_s=0")
    submitted = subprocess.run(
        command("submit", write_slow_job(tmp_path), "--name", "slow-1", *options),
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert submitted.returncode == 0, submitted.stderr
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        command("tensorboard", "slow", "--storage", storage, "--json"),
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        answer = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        assert answer["runs"] == ["slow-1"]
        url = answer["url"]
        train, validation = "slow-1/chief/train", "slow-1/chief/validation"
        wait_until(lambda: train in ask(url, "plugin/scalars/tags"), timeout_s=60)
        tags = ask(url, "plugin/scalars/tags")
        assert {"epoch_loss", "epoch_accuracy", "norm"} <= tags[train].keys()
        assert validation not in tags  # the job has no validation data
        points = ask(url, f"plugin/scalars/scalars?run={train}&tag=epoch_loss")
        assert [step for _, step, _ in points] == [10, 20, 30, 40]
        assert points[-1][2] == pytest.approx(last_loss(storage), rel=1e-6)
        request = {
            "experimentName": "",
            "colParams": [],
            "allowedStatuses": ["STATUS_SUCCESS"],
            "startIndex": 0,
            "sliceSize": 10,
        }
        [group] = ask(url, "plugin/hparams/session_groups", request)["sessionGroups"]
        assert (group["name"], group["hparams"]["epochs"]) == ("slow-1", 4.0)
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    assert list(temporary.iterdir()) == [] or [path.name for path in temporary.iterdir()] == [
        ".tensorboard-info"
    ]
