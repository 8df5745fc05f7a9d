"""`raydist compare --workers`: refuses what it cannot run before it starts, and prints what Ctrl-C leaves."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from raydist.cli.commands.studies import comparison
from raydist.cli.commands.studies.short_runs import Case, ShortRun
from raydist.cli.job_options import AskedJob
from raydist.errors import RaydistError, StorageError, TaskFailedError
from raydist.runs.scaling import Measurement
from raydist.runs.strategies_compared import LossCurve
from raydist.spec.job import JobSpec
from tests.cli.conftest import Run


@pytest.mark.parametrize("workers", ["", "x", "1,,2", "0,1", "-1", "1;2"])
def test_numbers_that_are_none_are_exit_2(raydist: Run, job_file: Callable[..., Path], workers: str) -> None:
    code, _, err = raydist("compare", str(job_file()), f"--workers={workers}", "--address", "local")
    assert code == 2
    assert "write numbers from 1 on, as in 1,2,4" in err


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        (["--workers", "2", "--steps", "0"], "--steps"),
        (["--workers", "2", "--strategy", "fast"], "fast"),
        (["--workers", "1000"], "1000"),
        ([], "--workers"),
    ],
    ids=["no-steps", "strategy", "too-many-workers", "no-workers"],
)
def test_what_cannot_be_run_is_one_sentence(
    raydist: Run, job_file: Callable[..., Path], arguments: list[str], piece: str
) -> None:
    code, out, err = raydist("compare", str(job_file()), *arguments, "--address", "local")
    assert code in (2, 3)
    assert piece in err
    assert "Traceback" not in err
    assert not out


def measure(found: list[str], ending: BaseException | None) -> Callable[..., ShortRun]:
    """Returns a `measure` that runs nothing and ends the third run with `ending`."""

    def measured(asked: AskedJob, case: Case, *, first: JobSpec, num_steps: int) -> ShortRun:
        found.append(case.name)
        if len(found) == 3 and ending is not None:
            raise ending
        one = Measurement(
            name=case.name,
            run=f"{first.name}-{case.name}",
            state="CANCELLED",
            strategy=case.plan.strategy.value,
            workers=case.plan.num_workers,
            steps=num_steps,
            examples_per_s=100.0 * len(found),
        )
        return ShortRun(plan=case.plan, measurement=one, curve=LossCurve())

    return measured


def test_each_number_is_run_once_beside_one_device(
    raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names: list[str] = []
    monkeypatch.setattr(comparison, "measure", measure(names, None))
    asked = ("compare", str(job_file()), "--workers", "4,1,2,2", "--address", "local", "--steps", "7")
    code, out, err = raydist(*asked, "--json", "--csv", "a.csv", "--plot", "a.svg")
    assert (code, err) == (0, "")
    # One worker without a GPU is what runs on one device.
    assert names == ["one device", "2 workers", "4 workers"]
    answer = json.loads(out)
    assert [one["speed_up"] for one in answer["runs"]] == [1.0, 2.0, 3.0]
    assert answer["bound"] == "cores"
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [(row["workers"], row["steps"]) for row in rows] == [("1", "7"), ("2", "7"), ("4", "7")]
    assert (tmp_path / "a.svg").read_text().startswith("<svg")


def test_ctrl_c_prints_the_runs_that_are_there(
    raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "measure", measure([], KeyboardInterrupt()))
    code, out, err = raydist("compare", str(job_file()), "--workers", "2,4", "--address", "local")
    assert code == 130
    assert "stopped by Ctrl-C after 2 of 3 runs" in err
    assert "one device" in out
    assert "2 workers" in out
    assert "4 workers" not in out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TaskFailedError("worker/1 failed first: ValueError: bad", task="worker/1", attempt=0), 1),
        (StorageError("cannot write to s3://bucket"), 4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_run_that_fails_leaves_those_before_it_in_every_format(
    raydist: Run,
    job_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: RaydistError,
    code: int,
) -> None:
    asked = ("compare", str(job_file()), "--workers", "2,4", "--address", "local", "--csv", "a.csv")
    monkeypatch.setattr(comparison, "measure", measure([], error))
    ended, out, err = raydist(*asked, "--json", "--plot", "a.svg")
    assert ended == code
    [sentence] = err.strip().splitlines()
    assert str(error) in sentence
    answer = json.loads(out)
    assert [one["name"] for one in answer["runs"]] == ["one device", "2 workers"]
    assert (answer["state"], answer["error"]["message"]) == ("FAILED", str(error))
    assert (answer["error"]["type"], answer["error"]["exit_code"]) == (type(error).__name__, code)
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [row["name"] for row in rows] == ["one device", "2 workers"]
    assert "2 workers" in (tmp_path / "a.svg").read_text()

    monkeypatch.setattr(comparison, "measure", measure([], error))
    ended, out, err = raydist(*asked)
    assert ended == code
    assert [line.split("  ")[0] for line in out.splitlines()[1:3]] == ["one device", "2 workers"]
    assert str(error) in err


@pytest.mark.parametrize("option", ["--csv", "--plot"])
@pytest.mark.parametrize(("path", "reason"), [("no/a", "No such file or directory"), (".", "Is a directory")])
def test_file_that_cannot_be_written_is_told_before_a_run_starts(
    raydist: Run,
    job_file: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    path: str,
    reason: str,
) -> None:
    names: list[str] = []
    monkeypatch.setattr(comparison, "measure", measure(names, None))
    asked = ("compare", str(job_file()), "--workers", "2", "--address", "local")
    code, out, err = raydist(*asked, option, path)
    assert (code, out, names) == (2, "", [])
    assert f"{path} cannot be written: {reason}; choose another with {option}" in err
