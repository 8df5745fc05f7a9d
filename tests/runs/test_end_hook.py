"""--on-end: what its command is given, and that nothing it does harms the run or stays."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path

import pytest

from raydist.outcome.result import RunResult
from raydist.outcome.status import RunState
from raydist.runs.hooks import run_command
from tests.conftest import WaitUntil

RESULT = RunResult(
    run="first", state=RunState.FAILED, storage="s3://bucket/first", steps=7, metrics={"loss": float("nan")}
)


def run(command: str, *, timeout_s: float = 20.0) -> str | None:
    return run_command(command, RESULT, storage="s3://bucket", timeout_s=timeout_s)


def test_command_is_told_of_the_run(tmp_path: Path) -> None:
    out = shlex.quote(str(tmp_path / "it's"))
    assert run(f'cat > {out}; echo "$RAYDIST_RUN $RAYDIST_STATE $RAYDIST_STORAGE" >> {out}') is None
    told, _, environment = (tmp_path / "it's").read_text().rpartition("}")
    assert json.loads(told + "}")["metrics"] == {"loss": None}
    assert json.loads(told + "}")["steps"] == 7
    assert environment == "first FAILED s3://bucket\n"


def test_output_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    assert run("echo said") is None
    assert capfd.readouterr() == ("", "said\n")


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("exit 3", "on_end ended with exit code 3"),
        ("no-such-program-here 2>/dev/null", "on_end ended with exit code 127"),
        ("kill -9 $$", "on_end was killed by SIGKILL"),
        ("true", None),
    ],
)
def test_failure_is_a_sentence(command: str, sentence: str | None) -> None:
    assert run(command) == sentence


def test_command_that_takes_too_long_is_ended_with_its_children(
    tmp_path: Path, wait_until: WaitUntil
) -> None:
    pid_file = tmp_path / "pid"
    begun_s = time.monotonic()
    sentence = run(f"sleep 100 & echo $! > {pid_file}; wait", timeout_s=1.0)
    assert sentence == "on_end took longer than 1 s, and was ended"
    assert time.monotonic() - begun_s < 20
    child = Path(f"/proc/{int(pid_file.read_text())}")
    # Its new parent may take a while to reap it.
    wait_until(lambda: not child.exists() or ") Z " in (child / "stat").read_text(), timeout_s=10)


def test_large_result_does_not_block_a_command_that_reads_nothing() -> None:
    result = RunResult(
        run="first", state=RunState.SUCCEEDED, storage="s", notes=tuple("x" * 1000 for _ in range(1000))
    )
    assert run_command("true", result, storage="s", timeout_s=20.0) is None
    assert "RAYDIST_RUN" not in os.environ
