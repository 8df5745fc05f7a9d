"""Real shells complete commands, options and names of runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

BIN = Path(sys.executable).parent


def completed(*words: str, incomplete: str, folder: Path) -> list[str]:
    """Returns what bash is offered behind `raydist WORDS`, as click's script asks for it."""
    environ = {
        **os.environ,
        "_RAYDIST_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["raydist", *words, incomplete]),
        "COMP_CWORD": str(len(words) + 1),
    }
    done = subprocess.run(
        [BIN / "raydist"], env=environ, cwd=folder, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.usefixtures("stored_run")
def test_names_of_runs_are_completed(tmp_path: Path) -> None:
    assert completed("status", incomplete="dig", folder=tmp_path) == ["digits-1"]
    assert completed("diff", "@latest", incomplete="", folder=tmp_path) == ["@latest", "digits-1"]
    assert completed("status", "--storage", "nowhere", incomplete="", folder=tmp_path) == ["@latest"]
    assert completed("status", "--storage", "ftp://x", incomplete="", folder=tmp_path) == []


@pytest.mark.usefixtures("stored_run")
def test_folder_that_a_shell_would_take_for_more_than_a_name_is_no_run(raydist: Run, tmp_path: Path) -> None:
    runs = tmp_path / "raydist_runs"
    for name in ("digits-$(touch x)", "digits-;ls", "digits-\nplain,x", "-rf", "digits-\x1b[2J"):
        shutil.copytree(runs / "digits-1", runs / name)
    assert completed("status", incomplete="", folder=tmp_path) == ["@latest", "digits-1"]
    assert [run["run"] for run in json.loads(raydist("list", "--json")[1])["runs"]] == ["digits-1"]


def test_commands_and_options_are_completed(tmp_path: Path) -> None:
    assert completed(incomplete="re", folder=tmp_path) == ["resume", "reproduce"]
    assert "--tail" in completed("logs", incomplete="--", folder=tmp_path)
    assert completed("list", "--state", incomplete="S", folder=tmp_path) == [
        "starting",
        "stopping",
        "succeeded",
    ]


@pytest.mark.usefixtures("stored_run")
def test_bash_offers_the_name_of_a_run(raydist: Run, tmp_path: Path) -> None:
    script = raydist("--completion", "bash")[1]
    (tmp_path / "completion.bash").write_text(script)
    asked = (
        "source completion.bash; COMP_WORDS=(raydist logs dig); COMP_CWORD=2; "
        '_raydist_completion raydist; echo "${COMPREPLY[@]}"'
    )
    environ = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", asked], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("digits-1", "")


@pytest.mark.parametrize(
    ("shell", "word"), [("bash", "complete -o"), ("zsh", "#compdef raydist"), ("fish", "complete --")]
)
def test_script_of_each_shell_is_printed_and_is_right_for_the_shell_if_it_is_here(
    raydist: Run, tmp_path: Path, shell: str, word: str
) -> None:
    code, out, err = raydist("--completion", shell)
    assert (code, err) == (0, "")
    assert word in out
    if shutil.which(shell):
        (tmp_path / "script").write_text(out)
        checked: Any = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, timeout=60)
        assert (checked.returncode, checked.stderr) == (0, b"")


def test_unknown_shell_is_exit_2(raydist: Run) -> None:
    code, out, err = raydist("--completion", "powershell")
    assert (code, out) == (2, "")
    assert "bash" in err
