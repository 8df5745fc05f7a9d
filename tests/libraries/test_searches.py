"""The guide's examples of searches with other libraries, run as they are written there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_search import DIGITS
from tests.support.guide import FOLDER, ROOT, blocks
from tests.support.records import record_of

pytestmark = pytest.mark.timeout(1200)

EXAMPLES = {code.split()[1]: code for code in blocks(FOLDER / "search.md", "py")}
# As the page says: each run would start a Ray of its own.
RAY = "import ray\n\nray.init(address='local', num_cpus=2, log_to_driver=False, logging_level='ERROR')\n"


def run_example(name: str, folder: Path, libraries: str) -> str:
    """Runs an example beside a job that it names; returns what it prints."""
    # A pause, or its epochs have all been trained by the time a run is asked to stop.
    (folder / "digits.py").write_text(DIGITS.replace('"pause_s": 0.0', '"pause_s": 0.5'))
    (folder / "example.py").write_text(f"{RAY}{EXAMPLES[name]}ray.shutdown()\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), libraries])}
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, env=environ, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def runs_in(folder: Path, prefix: str) -> dict[str, dict[str, object]]:
    names = sorted(path.parent.name for path in (folder / "raydist_runs").glob(f"{prefix}-*/run.json"))
    return {name: record_of(folder / "raydist_runs", name) for name in names}


def test_optuna_prunes_runs_and_finds_the_best(tmp_path: Path, libraries: str) -> None:
    out = run_example("optuna", tmp_path, libraries)
    records = runs_in(tmp_path, "optuna")
    assert list(records) == [f"optuna-{number}" for number in range(6)]
    states = [record["state"] for record in records.values()]
    assert states[:2] == ["SUCCEEDED", "SUCCEEDED"]  # none is pruned before there are two to compare with
    assert set(states) == {"SUCCEEDED", "CANCELLED"}
    assert states[-1] == "CANCELLED"  # whose learning rate is a tenth of the others'
    values = {
        name: record["metrics"]["val_accuracy"]  # type: ignore[index]
        for name, record in records.items()
        if record["state"] == "SUCCEEDED"
    }
    best = records[max(values, key=values.__getitem__)]
    assert str({"learning_rate": best["spec"]["params"]["learning_rate"]}) in out  # type: ignore[index]


def test_keras_tuner_makes_runs_in_the_driver(tmp_path: Path, libraries: str) -> None:
    out = run_example("keras_tuner", tmp_path, libraries)
    records = runs_in(tmp_path, "digits")
    assert [record["state"] for record in records.values()] == 3 * ["SUCCEEDED"]
    best = max(records.values(), key=lambda record: record["metrics"]["val_accuracy"])  # type: ignore[index]
    assert str({"learning_rate": best["spec"]["params"]["learning_rate"]}) in out  # type: ignore[index]
