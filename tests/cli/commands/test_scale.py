"""`raydist scale`: refuses what it cannot run before it starts anything, and prints what Ctrl-C leaves."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydist.cli.commands.studies.short_runs import JobRuns
from raydist.planning.plan import Plan
from raydist.runs.scaling import Measurement
from raydist.runs.strategies_compared import LossCurve
from tests.cli.conftest import Run


@pytest.mark.parametrize("workers", ["", "x", "1,,2", "0,1", "-1", "1;2"])
def test_numbers_that_are_none_are_exit_2(raydist: Run, job_file: Callable[..., Path], workers: str) -> None:
    code, _, err = raydist("scale", str(job_file()), f"--workers={workers}", "--address", "local")
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
    code, out, err = raydist("scale", str(job_file()), *arguments, "--address", "local")
    assert code in (2, 3)
    assert piece in err
    assert "Traceback" not in err
    assert not out


def measure(found: list[str], ending: BaseException | None) -> Callable[..., tuple[Measurement, LossCurve]]:
    """Returns a `JobRuns.measure` that runs nothing and ends the third run with `ending`."""

    def measured(self: JobRuns, name: str, plan: Plan, *, study: str, num_steps: int, **own: Any) -> Any:
        found.append(name)
        if len(found) == 3 and ending is not None:
            raise ending
        one = Measurement(
            name=name,
            run=f"{study}-{name}",
            state="CANCELLED",
            strategy=plan.strategy.value,
            workers=plan.num_workers,
            steps=num_steps,
            examples_per_s=100.0 * len(found),
        )
        return one, LossCurve()

    return measured


def test_each_number_is_run_once_beside_one_device(
    raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names: list[str] = []
    monkeypatch.setattr(JobRuns, "measure", measure(names, None))
    asked = ("scale", str(job_file()), "--workers", "4,1,2,2", "--address", "local", "--steps", "7")
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
    monkeypatch.setattr(JobRuns, "measure", measure([], KeyboardInterrupt()))
    code, out, err = raydist("scale", str(job_file()), "--workers", "2,4", "--address", "local")
    assert code == 130
    assert "stopped by Ctrl-C after 2 of 3 runs" in err
    assert "one device" in out
    assert "2 workers" in out
    assert "4 workers" not in out
