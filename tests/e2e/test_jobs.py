"""The jobs of jobs/, unchanged, under every synchronous strategy."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import BIN, ROOT, Ended
from tests.support.environ import inherited
from tests.support.guide import README, blocks, commands
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.slow

Raydist = Callable[..., Ended]
STRATEGIES = {
    "one_device": ["--strategy", "one_device"],
    "mirrored": ["--strategy", "mirrored", "--devices", "2"],
    "central_storage": ["--strategy", "central_storage", "--devices", "2"],
    "multi_worker_mirrored": ["--workers", "2"],
}


JOBS = {"cifar": ["-p", "epochs=2", "-p", "data=digits"], "digits": ["-p", "epochs=3"]}


# The README's command is the default test of multi_worker_mirrored.
@pytest.mark.exhaustive(
    "cifar",
    "multi_worker_mirrored",
    covered_by="jobs/digits.py under each strategy; the README's job in test_failures.py",
)
@pytest.mark.parametrize(
    ("job", "strategy"),
    [(job, strategy) for job in JOBS for strategy in STRATEGIES],
)
def test_job_learns_under(raydist: Raydist, job: str, strategy: str) -> None:
    path = str(ROOT / "jobs" / f"{job}.py")
    ended = raydist("submit", path, *STRATEGIES[strategy], *JOBS[job], "--json")
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["strategy"], result["attempts"]) == ("SUCCEEDED", strategy, 1)
    assert result["metrics"]["loss"] < 1.5  # an untrained network of ten classes has 2.3
    assert result["steps"] == (24 if job == "cifar" else 45)
    assert result["checkpoint"].endswith(f"/checkpoints/step-{result['steps']}-a0")
    assert len(result["tasks"]) == (2 if strategy == "multi_worker_mirrored" else 1)


def test_legacy_keras_trains_the_same_job(raydist: Raydist) -> None:
    job = str(ROOT / "jobs" / "cifar.py")
    ended = raydist("submit", job, "--keras", "legacy", "-p", "epochs=1", "-p", "data=digits", "--json")
    assert ended.code == 0, ended.err
    assert (ended.json["state"], ended.json["keras"]) == ("SUCCEEDED", "legacy")


def test_auto_falls_back_to_the_digits_and_says_so(raydist: Raydist, tmp_path: Path) -> None:
    job = str(ROOT / "jobs" / "cifar.py")
    ended = raydist("submit", job, "-p", "epochs=1", "-p", f"data_dir={tmp_path}", "--json")
    assert ended.code == 0, ended.err
    assert [note for note in ended.json["notes"] if note.startswith("data: scikit-learn's digits")]


def test_cifar_data_has_the_same_losses_from_every_source(raydist: Raydist) -> None:
    common = ("-p", "epochs=2", "-p", "data=digits", "--workers", "1", "--json")
    losses = {}
    for source in ("arrays", "parquet", "tfrecord", "images"):
        ended = raydist("submit", str(ROOT / "jobs" / "cifar_data.py"), "-p", f"source={source}", *common)
        assert ended.code == 0, ended.err
        losses[source] = [ended.json["metrics"][name] for name in ("loss", "val_loss")]
    assert losses == dict.fromkeys(losses, losses["arrays"])


def test_folder_of_a_finished_run_tells_everything(raydist: Raydist, tmp_path: Path) -> None:
    job = str(ROOT / "jobs" / "digits.py")
    assert raydist("submit", job, "-p", "epochs=2", "--name", "told").code == 0
    folder = tmp_path / "raydist_runs" / "told"
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoints", "claims", "code", "events", "logs", "metrics", "run.json", "tensorboard", "token",
    ]  # fmt: skip
    assert sorted(path.name for path in (folder / "logs" / "0").iterdir()) == ["worker-0", "worker-1"]
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-30-a0"]
    status = raydist("status", "told", "--json").json
    assert (status["state"], status["steps"]) == ("SUCCEEDED", 30)
    rows: Any = raydist("metrics", "told", "--format", "json").out
    assert "test_accuracy" in rows
    listed = raydist("list", "--json").json
    assert "told" in str(listed)


def test_first_command_of_the_readme_needs_no_token_and_leaves_none(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(blocks(README, "python")[0])
    home = tmp_path / "home"
    home.mkdir()
    ended = subprocess.run(
        [BIN / "raydist", *next(commands(README)), "--address", "local"],
        cwd=tmp_path,
        env={**inherited(), "HOME": str(home), "RAY_AUTH_MODE": "token"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180 * PATIENCE,
    )
    assert ended.returncode == 0, ended.stderr
    assert "SUCCEEDED after 330 steps" in ended.stdout + ended.stderr
    assert not (home / ".ray").exists()
