"""`raydist compare` plans each strategy before it runs any, and refuses names that are none."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("strategies", "sentence"),
    [
        ("mirrored,parameter_servers", "did you mean parameter_server?"),
        ("fast", "write some of one_device, mirrored"),
        ("auto", "'auto', which is no strategy"),
        ("", "'', which is no strategy"),
    ],
)
def test_unknown_strategies_are_exit_2(
    raydist: Run, job_file: Callable[..., Path], strategies: str, sentence: str
) -> None:
    code, out, err = raydist("compare", str(job_file()), "--strategies", strategies, "--address", "local")
    assert (code, out) == (2, "")
    assert sentence in err


def test_each_strategy_has_the_tasks_that_it_needs(
    raydist: Run, job_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    planned: list[tuple[int, int]] = []

    def measure(self: JobRuns, name: str, plan: Plan, *, study: str, num_steps: int, **own: Any) -> Any:
        planned.append((plan.num_workers, own["ps"]))
        facts: dict[str, Any] = {"state": "CANCELLED", "strategy": name, "workers": plan.num_workers}
        one = Measurement(name=name, run=f"{study}-{name}", batch=10, **facts)
        return one, LossCurve(steps=[1, 2], seconds=[0.0, 1.0], losses=[2.0, 1.0 / len(planned)])

    monkeypatch.setattr(JobRuns, "measure", measure)
    names = "one_device,multi_worker_mirrored,parameter_server"
    asked = ("compare", str(job_file()), "--strategies", names, "--workers", "2", "--ps-staleness", "1")
    code, out, err = raydist(*asked, "--address", "local", "--json", "--csv", "a.csv")
    assert (code, err) == (0, "")
    assert planned == [(1, 0), (2, 0), (2, 1)]
    answer = json.loads(out)
    assert (answer["examples"], answer["seconds"]) == (20, 1.0)
    assert [one["staleness"] for one in answer["runs"]] == [0, 0, 3]
    assert [one["loss_at_equal_time"] for one in answer["runs"]] == [1.0, 0.5, 0.3333]
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 4
