"""The jobs with embeddings under ParameterServerStrategy, against one device, with their own defaults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import ROOT, Raydist

# Six tasks of a CPU each are more than the tests' running Ray has; an embedded one is made to fit.
PARAMETER_SERVER = ["--strategy", "parameter_server", "--workers", "3", "--ps", "2", "--address", "local"]
PARAMS = {
    "recommender.py": [],
    "imdb.py": ["-p", "data=generated"],  # whatever is in this machine's cache of Keras
}


@pytest.fixture(scope="module")
def reached() -> dict[str, Any]:
    """The metrics of each job on one device, from the first test that needed them."""
    return {}


@pytest.mark.exhaustive(
    "imdb", "legacy", "sharded", covered_by="[recommender-3]; tests/compat; training/test_parameter_server.py"
)
@pytest.mark.parametrize(
    ("job", "options", "metric", "steps"),
    [
        pytest.param(*("recommender.py", ["--keras", "3"], "val_rmse", 1080), marks=pytest.mark.slow),
        pytest.param(*("recommender.py", ["--keras", "legacy"], "val_rmse", 1080), marks=pytest.mark.slow),
        ("recommender.py", ["--partitioner", "fixed_shards:2"], "val_rmse", 1080),
        pytest.param(*("imdb.py", ["--keras", "3"], "val_accuracy", 600), marks=pytest.mark.slow),
        pytest.param(*("imdb.py", ["--keras", "legacy"], "val_accuracy", 600), marks=pytest.mark.slow),
    ],
    ids=["recommender-3", "recommender-legacy", "recommender-sharded", "imdb-3", "imdb-legacy"],
)
def test_job_learns_within_5_percent_of_one_device(
    raydist: Raydist, reached: dict[str, Any], job: str, options: list[str], metric: str, steps: int
) -> None:
    command = ["submit", str(ROOT / "jobs" / job), *PARAMS[job]]
    if job not in reached:
        alone = raydist(*command, "--strategy", "one_device", "--json")
        assert alone.code == 0, alone.err
        reached[job] = alone.json["metrics"]
    ended = raydist(*command, *PARAMETER_SERVER, *options, "--json")
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["strategy"], result["attempts"]) == ("SUCCEEDED", "parameter_server", 1)
    assert result["steps"] == steps
    assert result["metrics"][metric] == pytest.approx(reached[job][metric], rel=0.05)
