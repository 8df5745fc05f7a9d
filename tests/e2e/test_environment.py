"""A job's own variables: the tasks have them, and nothing that the run leaves has the secret ones."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Ended, status_of

SCRIPT = """
import os

found = {name: os.environ.get(name) for name in ("OPEN", "HF_TOKEN", "DATABASE")}
assert found == {"OPEN": "a b", "HF_TOKEN": "hush-token", "DATABASE": "postgres://me:hush-word@db/x"}
print("all variables are there")
"""


@pytest.mark.slow
def test_tasks_have_the_variables_and_storage_has_no_secret(
    raydist: Callable[..., Ended], tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text(SCRIPT)
    (code / "tasks.env").write_text("HF_TOKEN=hush-token\nOPEN=file\n")
    env = ("--env", "OPEN=a b", "--env", "DATABASE=postgres://me:hush-word@db/x")
    ended = raydist(
        *("submit", str(code / "main.py"), "--json", "--name", "r"),
        *("--env-file", str(code / "tasks.env"), *env),
    )
    assert ended.code == 0, ended.out + ended.err
    assert "hush" not in ended.out + ended.err
    spec = status_of(tmp_path, "r")["spec"]
    assert spec["env"] == {"OPEN": "a b", "HF_TOKEN": "***", "DATABASE": "***"}
    folder = tmp_path / "raydist_runs" / "r"
    stored = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in stored if b"hush" in path.read_bytes()]
    [archive] = folder.rglob("*.zip")
    assert zipfile.ZipFile(archive).namelist() == ["main.py"]
    described = raydist("status", "r", "--all")
    assert "hush" not in described.out
    assert "HF_TOKEN" in described.out
