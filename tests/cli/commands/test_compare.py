"""`raydist compare` plans each strategy before it runs any, and refuses names that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raydist.cli.commands.studies import comparison
from raydist.cli.commands.studies.short_runs import Case, ShortRun
from raydist.cli.job_options import AskedJob
from raydist.errors import ClusterError
from raydist.runs.scaling import Measurement
from raydist.runs.strategies_compared import LossCurve
from raydist.spec.job import JobSpec
from tests.cli.conftest import Run


@pytest.mark.parametrize(
    ("strategies", "sentence"),
    [
        ("mirrored,parameter_servers", "did you mean parameter_server?"),
        ("fast", "'fast'; write one of one_device, mirrored"),
        ("auto", "'auto'; write one of one_device"),
        ("", "--strategies names ''; write one of one_device"),
    ],
)
def test_unknown_strategies_are_exit_2(
    raydist: Run, job_file: Callable[..., Path], strategies: str, sentence: str
) -> None:
    code, out, err = raydist("compare", str(job_file()), "--strategies", strategies, "--address", "local")
    assert (code, out) == (2, "")
    assert sentence in err


def measure(planned: list[tuple[int, int]], *, fails_at: int | None = None) -> Callable[..., ShortRun]:
    """Returns a `measure` that runs nothing; the run of that number fails."""

    def measured(asked: AskedJob, case: Case, *, first: JobSpec, num_steps: int) -> ShortRun:
        if len(planned) == fails_at:
            raise ClusterError("the Ray has gone")
        planned.append((case.plan.num_workers, case.own["ps"]))
        facts: dict[str, Any] = {"state": "CANCELLED", "strategy": case.name}
        one = Measurement(
            name=case.name, run=f"{first.name}-{case.name}", batch=10, workers=case.plan.num_workers, **facts
        )
        curve = LossCurve(steps=[1, 2], seconds=[0.0, 1.0], losses=[2.0, 1.0 / len(planned)])
        return ShortRun(plan=case.plan, measurement=one, curve=curve)

    return measured


def test_each_strategy_has_the_tasks_that_it_needs(
    raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned: list[tuple[int, int]] = []

    monkeypatch.setattr(comparison, "measure", measure(planned))
    names = "one_device,multi_worker_mirrored,parameter_server"
    asked = ("compare", str(job_file()), "--strategies", names, "--workers", "2")
    code, out, err = raydist(*asked, "--address", "local", "--json", "--csv", "a.csv", "--plot", "a.svg")
    assert (code, err) == (0, "")
    assert planned == [(1, 0), (2, 0), (2, 1)]
    answer = json.loads(out)
    assert (answer["examples"], answer["seconds"]) == (20, 1.0)
    assert [one["staleness"] for one in answer["runs"]] == [0, 0, 1]
    assert [one["loss_at_equal_time"] for one in answer["runs"]] == [1.0, 0.5, 0.3333]
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 4
    assert "parameter_server</text>" in (tmp_path / "a.svg").read_text()


def test_run_that_fails_leaves_those_before_it(
    raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(comparison, "measure", measure([], fails_at=1))
    asked = ("compare", str(job_file()), "--strategies", "one_device,mirrored", "--address", "local")
    code, out, err = raydist(*asked, "--json", "--csv", "a.csv")
    assert code == 3
    assert "the Ray has gone" in err
    answer = json.loads(out)
    assert [one["strategy"] for one in answer["runs"]] == ["one_device"]
    assert (answer["state"], answer["error"]["type"]) == ("FAILED", "ClusterError")
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2
