"""Looking at a run never executes, joins or follows anything that the run's storage says.

Every command that takes a run or a storage is tried on storages in which every field, file, link and model is
hostile. Canaries tell whether something of them was executed, a socket that listens whether something was
joined, a process whether something was signalled, and a secret whether something was followed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from raydist.cli.main import COMMANDS, cli
from tests.support.hostile import Traps
from tests.support.hostile_driver import EXECUTES, KINDS, SERVERS, VARIANTS
from tests.support.hostile_files import evil_model

_RAYDIST = (sys.executable, "-m", "raydist.cli.main")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_command_does_what_a_storage_says(kind: str, tmp_path: Path) -> None:
    driver = [sys.executable, "-m", "tests.support.hostile_driver", kind, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(driver, env=environ, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = json.loads(ended.stdout)
    assert told["wrong"] == {}, told
    assert told["num_tried"] > len(COMMANDS)


# Writes a run whose SavedModel is whole.
_MODEL = """
import sys, keras
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.export(sys.argv[1])
"""


@pytest.mark.exhaustive("legacy", covered_by="[3]")
@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["3", "legacy"])
def test_model_that_runs_code_is_not_loaded(flavour: str, tmp_path: Path) -> None:
    traps = Traps(folder=tmp_path / "victim")
    traps.folder.mkdir()
    export = tmp_path / "runs" / "r" / "export"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", _MODEL, str(export / "saved_model")], env=environ, check=True)
    (export / "model.keras").write_bytes(evil_model(traps))
    record = {"state": "SUCCEEDED", "keras": flavour}
    (tmp_path / "runs" / "r" / "run.json").write_text(json.dumps(record))
    command = [*_RAYDIST, "export", "r", "--to", "keras", "--storage", str(tmp_path / "runs"), "-o", "out"]
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert "its model.keras has code of its own, which loading it would run: a Lambda" in ended.stderr
    assert not traps.canary.exists()


def test_every_command_that_takes_a_storage_is_tried_or_named() -> None:
    context = click.Context(cli)
    options = {name: {one.name for one in _command(context, name).params} for name in COMMANDS}
    with_storage = {name for name, known in options.items() if "storage" in known}
    assert {*EXECUTES, *SERVERS, *VARIANTS} <= with_storage
    without = set(COMMANDS) - with_storage
    assert not any({"run", "runs"} & options[name] for name in without)


def _command(context: click.Context, name: str) -> click.Command:
    command = cli.get_command(context, name)
    assert command is not None
    return command
