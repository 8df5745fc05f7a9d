from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from raydist.cli import main
from raydist.cli.job_options import HEADINGS, USUAL
from raydist.cli.screen import output
from raydist.spec.settings.option import OptionKind
from raydist.spec.settings.options import OPTIONS


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["sumbit", "job.py"], "no command 'sumbit'; did you mean submit?", id="near-command"),
        pytest.param(["fly"], "no command 'fly'; write one of submit, plan, search", id="far-command"),
        pytest.param(["submit", "j.py", "--worker", "2"], "--workers", id="near-option"),
        pytest.param(
            ["logs", "r", "--keep", "3"],
            "No such option '--keep' (see `raydist logs --help`)",
            id="far-option",
        ),
        pytest.param(["submit", "j.py", "--param", "a=1"], "did you mean -p?", id="short-option"),
        pytest.param(["submit"], "Missing argument 'JOB'", id="no-job"),
        pytest.param(["download", "r"], "output, checkpoint, export, code, page (see", id="no-choice"),
        pytest.param(["logs", "r", "--tail"], "an argument (see `raydist logs --help`)", id="no-value"),
        pytest.param(["--fly"], "No such option '--fly' (see `raydist --help`)", id="no-option"),
    ],
)
def test_usage_error_is_exit_2_and_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sentence in captured.err
    assert "Traceback" not in captured.err
    assert captured.err.startswith("raydist: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["list"], ["plan", "job.py"], ["status", "r"], ["submit", "job.py"]], ids=" ".join
)
def test_folder_that_was_deleted_is_exit_2(arguments: list[str], tmp_path: Path) -> None:
    code = (
        "import os; from raydist.cli import main; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
        "main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "raydist: the current folder was deleted, or cannot be read; change to another folder with cd\n"
    )


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["logs", "r", "worker/1"], "argument 'worker/1'; did you mean --task worker/1?"),
        (["submit", "job.py", "-p", "rate", "0.1"], "argument '0.1'; a param is -p NAME=VALUE"),
        (["status", "r", "other"], "argument 'other' (see"),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_argument_that_belongs_to_an_option_is_told(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    assert hint in capsys.readouterr().err


def test_usage_error_with_json_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["submit", "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert printed["state"] == "FAILED"
    assert printed["error"]["type"] == "UsageError"
    assert "JOB" in printed["error"]["message"]


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"raydist {metadata.version('raydist')}\n"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    printed = capsys.readouterr().out
    for command in (
        "submit",
        "plan",
        "list",
        "status",
        "logs",
        "metrics",
        "resume",
        "stop",
        "chaos",
        "doctor",
        "guide",
    ):
        assert f"\n  {command} " in printed


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"metrics": {"loss": float("nan"), "steps": 3}, "rates": (float("inf"),)})
    assert json.loads(capsys.readouterr().out) == {"metrics": {"loss": None, "steps": 3}, "rates": [None]}


def test_table_puts_numbers_right_and_shows_a_dash_for_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["name", "steps"], [["a", 7], ["longer", None], ["b", 1234]])
    assert capsys.readouterr().out.splitlines() == [
        "name    steps",
        "a           7",
        "longer      -",
        "b        1234",
    ]


def test_what_others_write_to_stdout_goes_to_stderr_with_json() -> None:
    code = (
        "import os, subprocess, sys\n"
        "from raydist.cli.screen import output\n"
        "with output.stdout_kept_for_json(True):\n"
        "    os.write(1, b'from C\\n'); print('from Python'); subprocess.run(['echo', 'from a child'])\n"
        "output.print_json({'state': 'SUCCEEDED'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == {"state": "SUCCEEDED"}
    assert sorted(done.stderr.split("\n")) == ["", "from C", "from Python", "from a child"]


def test_console_script_starts_without_ray_or_tensorflow() -> None:
    code = "import sys; from raydist.cli import main; main.run(['submit', '--help']); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=dict(os.environ),
    )
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"ray", "tensorflow", "pyarrow", "rich"}


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main.run([*command.split(), "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["", *main.COMMANDS])
def test_help_fits_80_columns_and_cuts_nothing_off(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = help_of(command, capsys)
    assert "..." not in printed.replace("[ARGS]...", "")
    assert max(map(len, printed.splitlines())) <= 80


def test_help_has_one_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    printed = help_of("", capsys)
    for title, group in main.GROUPS.items():
        commands = printed.partition(f"\n{title}:\n")[2].partition("\n\n")[0]
        rows = [line.split()[0] for line in commands.splitlines() if re.match(r"  \S", line)]
        assert rows == list(group)
    assert len(main.COMMANDS) <= 26


WRITTEN = [option for option in OPTIONS if option.kind is not OptionKind.MAPPING]


def test_every_option_is_under_one_heading() -> None:
    grouped = [name for names in HEADINGS.values() for name in names]
    assert sorted(grouped) == sorted(
        ["param_texts", "is_module", "config", "cpus", "gpus", "memory", *(option.name for option in WRITTEN)]
    )


@pytest.mark.parametrize("command", ["submit", "plan", "resume", "search", "compare"])
def test_help_has_the_usual_options_in_groups_with_an_example_each(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = help_of(command, capsys)
    groups = dict(re.findall(r"^([A-Z][^\n]*):\n(.*?)(?=^\S|\Z)", printed, flags=re.MULTILINE | re.DOTALL))
    own = [command.capitalize()] if command in ("search", "compare") else []
    assert list(groups) == [*own, *USUAL, "Output and help"]
    written = [name for names in USUAL.values() for name in names]
    assert len([name for name in written if name != "args"]) <= 18
    for title in USUAL:
        example = shlex.split(groups[title].partition("\n  Example: ")[2])
        flags = [word for word in example if word.startswith("-")]
        assert flags, title
        for flag in flags:
            assert re.search(rf"^  {flag}\b", groups[title], flags=re.MULTILINE), flag
    assert re.search(r"^  --help-all +Show all options", printed, flags=re.MULTILINE)


@pytest.mark.parametrize("command", ["submit", "plan", "resume"])
def test_all_options_of_a_run_are_in_groups(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([command, "--help-all"]) == 0
    printed = capsys.readouterr().out
    headings = [line.removesuffix(":") for line in printed.splitlines() if re.match(r"[A-Z].*:$", line)]
    assert headings == [*HEADINGS, "Output and help"]
    assert f"  Example:\n    raydist {command} " in printed
    assert "\n  JOB\n" not in printed  # an argument, which the description explains
    for flag in [f"--{one.name.replace('_', '-')}" if one.name != "args" else "-- ARGS" for one in WRITTEN]:
        shown = re.findall(rf"^  {flag}\b(?!-)", printed, flags=re.MULTILINE)
        assert len(shown) == (0 if command == "resume" and flag in ("--name", "--resume") else 1), flag


@pytest.mark.parametrize("command", ["submit", "list"])
def test_ctrl_c_while_modules_are_imported_is_one_sentence(command: str) -> None:
    code = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *args):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from raydist.cli.console import start
start()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code, command, "job.py"], check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "raydist: stopped by Ctrl-C\n")
