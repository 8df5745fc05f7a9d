"""A job on Ray under each strategy, with every version: what `--compat` runs beside test_promises.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.e2e.conftest import ROOT, Ended

pytestmark = pytest.mark.timeout(3600)
STRATEGIES = {
    "one_device": ("--strategy", "one_device"),
    "mirrored": ("--strategy", "mirrored", "--devices", "2"),
    "central_storage": ("--strategy", "central_storage", "--devices", "2"),
    "multi_worker_mirrored": ("--workers", "2"),
    "parameter_server": ("--strategy", "parameter_server", "--workers", "1", "--ps", "1"),
}


@pytest.mark.parametrize(
    ("strategy", "keras"),
    [*((strategy, "3") for strategy in STRATEGIES), ("multi_worker_mirrored", "legacy")],
)
def test_job_runs_on_ray_under(raydist: Callable[..., Ended], strategy: str, keras: str) -> None:
    job = str(ROOT / "jobs" / "cifar.py")
    options = ("--keras", keras, "-p", "epochs=1", "-p", "data=digits", "--json")
    ended = raydist("submit", job, *STRATEGIES[strategy], *options)
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["strategy"], result["keras"]) == ("SUCCEEDED", strategy, keras)
    assert result["steps"] == 12
    assert result["metrics"]["loss"] < 2.3  # an untrained network of ten classes
