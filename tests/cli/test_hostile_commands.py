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
from tests.support.hostile_driver import EXECUTES, KINDS, SERVERS, VARIANTS


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
