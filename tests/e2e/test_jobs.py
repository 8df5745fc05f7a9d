"""The jobs of jobs/, unchanged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import BIN, ROOT, Raydist
from tests.support.environ import inherited
from tests.support.guide import README, blocks, commands
from tests.support.processes import PATIENCE

pytestmark = pytest.mark.slow


def test_digits_are_learned_under_central_storage(raydist: Raydist) -> None:
    # Of the other strategies: test_killed_anywhere.py, test_embedding_jobs.py, the README's command
    strategy = ("--strategy", "central_storage", "--devices", "2")
    ended = raydist("submit", str(ROOT / "jobs" / "digits.py"), *strategy, "-p", "epochs=3", "--json")
    assert ended.code == 0, ended.err
    result = ended.json
    assert (result["state"], result["strategy"], result["attempts"]) == ("SUCCEEDED", "central_storage", 1)
    assert result["metrics"]["loss"] < 1.5  # an untrained network of ten classes has 2.3
    assert result["steps"] == 45
    assert result["checkpoint"].endswith("/checkpoints/step-45-a0")
    assert len(result["tasks"]) == 1


def test_legacy_keras_trains_cifar_and_falls_back_to_the_digits(raydist: Raydist, tmp_path: Path) -> None:
    options = ("--keras", "legacy", "-p", "epochs=1", "-p", f"data_dir={tmp_path}", "--json")
    ended = raydist("submit", str(ROOT / "jobs" / "cifar.py"), *options)
    assert ended.code == 0, ended.err
    assert (ended.json["state"], ended.json["keras"]) == ("SUCCEEDED", "legacy")
    assert [note for note in ended.json["notes"] if note.startswith("data: scikit-learn's digits")]


def test_cifar_data_has_the_same_losses_from_every_source(raydist: Raydist) -> None:
    common = ("-p", "epochs=2", "-p", "data=digits", "--workers", "1", "--json")
    losses = {}
    for source in ("arrays", "parquet", "tfrecord", "images"):
        ended = raydist("submit", str(ROOT / "jobs" / "cifar_data.py"), "-p", f"source={source}", *common)
        assert ended.code == 0, ended.err
        losses[source] = [ended.json["metrics"][name] for name in ("loss", "val_loss")]
    assert losses == dict.fromkeys(losses, losses["arrays"])


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
    told = ended.stdout + ended.stderr
    assert "SUCCEEDED after 330 steps" in told
    assert "embedded Ray" in told
    assert "oneDNN" not in told  # TensorFlow's start-up noise belongs in the task's log
    assert not (home / ".ray").exists()
