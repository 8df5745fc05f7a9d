"""Streams that are closed, full, or read to their first line: one sentence, never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("stored_run")

# Ray is not started, so that a run can be driven to its end within a second.
FAKED = """
import sys
from raydist import api
from raydist.cli import main
from raydist.outcome.result import RunResult
from raydist.outcome.status import RunState

state = RunState[sys.argv.pop()]

def run(job, *, on_event, **options):
    for step in range(3):
        on_event({"event": "note", "message": f"step {step}"})
    open("ended", "w").close()
    return RunResult(run="r", state=state, strategy="mirrored", keras="3", attempts=1,
                     steps=3, storage="/runs/r")

api.run = run
main.main()
"""
MAIN = "from raydist.cli import main; main.main()"


def case(arguments: list[str], *, is_slow: bool = True) -> Any:
    name = "-".join(word.strip("-") for word in arguments[:1] + arguments[2:])
    return pytest.param(arguments, id=name, marks=pytest.mark.slow if is_slow else ())


# Each of them writes in another way.
QUICK = [
    case(one, is_slow=False)
    for one in (
        ["status", "digits-1"],
        ["logs", "digits-1", "--json"],
        ["metrics", "digits-1", "--format", "csv"],
        ["--help"],
    )
]
OTHERS = [
    ["status", "digits-1", "--json"],
    ["list"],
    ["list", "--json"],
    ["logs", "digits-1"],
    ["logs", "digits-1", "--task", "worker/0", "-f"],
    ["metrics", "digits-1"],
    ["metrics", "digits-1", "--json"],
    ["metrics", "digits-1", "--plot"],
    ["status", "digits-1", "--checkpoints"],
    ["status", "digits-1", "--checkpoints", "--json"],
    ["stop", "digits-1"],
    ["plan", "job.py:train", "--address", "local"],
    ["plan", "job.py:train", "--address", "local", "--json"],
    ["--version"],
    ["submit", "--help"],
]
FULL = "stdout cannot be written: No space left on device"


@pytest.fixture(autouse=True)
def job(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import raydist\n\n\n@raydist.job\ndef train(ctx):\n    pass\n")


def shell(redirection: str, arguments: list[str], *, code: str = MAIN) -> subprocess.CompletedProcess[str]:
    """Runs the command in bash with that behind it; its exit code is that of raydist in a pipe too."""
    line = f'set -o pipefail; "$0" -c "$CODE" "$@" {redirection}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={"CODE": code, "PATH": "/usr/bin:/bin"},
    )


@pytest.mark.parametrize("arguments", [*QUICK, *map(case, OTHERS)])
def test_stdout_that_is_full_is_one_sentence(arguments: list[str]) -> None:
    done = shell("> /dev/full", arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"raydist: {FULL}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", QUICK)
def test_stdout_that_is_closed_is_one_sentence_and_read_no_further_no_error(arguments: list[str]) -> None:
    done = shell(">&-", arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("raydist: stdout is closed")
    assert done.stderr.count("\n") == 1
    done = shell("| head -c 0", arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_first_line_of_a_long_table_is_enough(tmp_path: Path) -> None:
    from raydist.storage.run_storage import open_run
    from tests.support.metric_rows import row, store_rows

    rows = [row(step=step, value=step / 7) for step in range(8_000)]
    store_rows(open_run(str(tmp_path / "raydist_runs"), run="digits-1"), rows)
    done = shell("| head -1", ["metrics", "digits-1", "--format", "csv"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "step,epoch,task,loss\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "arguments"),
    [
        ("2>&-", ["status", "digits-1"]),
        ("2> /dev/full", ["status", "digits-1", "--json"]),
        ("<&-", ["list"]),
        ("<&- 2>&-", ["list", "--json"]),
    ],
)
def test_other_streams_do_not_matter(redirection: str, arguments: list[str]) -> None:
    done = shell(redirection, arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == shell("", arguments).stdout != ""


@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full", "> /dev/full", ">&- 2>&-"])
def test_mistake_keeps_its_exit_code_where_nothing_can_be_printed(redirection: str) -> None:
    done = shell(redirection, ["status", "nothing-like-it", "--json"])
    assert done.returncode == (1 if ">&- 2" in redirection else 2)
    assert "Traceback" not in done.stderr
    if "2>" in redirection and ">&- 2" not in redirection:
        assert json.loads(done.stdout)["error"]["type"] == "MistakeError"


def submitted(redirection: str, *, more: tuple[str, ...] = (), state: str = "SUCCEEDED") -> Any:
    return shell(redirection, ["submit", "job.py", *more, state], code=FAKED)


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["lines", "json"])
def test_run_goes_on_to_its_end_where_its_screen_is_full(tmp_path: Path, more: tuple[str, ...]) -> None:
    done = submitted("> /dev/full", more=more)
    assert (tmp_path / "ended").exists()
    assert done.returncode == 1
    assert done.stderr.count(FULL) == 1
    assert "Traceback" not in done.stderr


def test_run_goes_on_to_its_end_where_nobody_reads(tmp_path: Path) -> None:
    done = submitted("| head -c 0")
    assert (tmp_path / "ended").exists()
    assert (done.returncode, done.stderr) == (0, "")


def test_run_that_failed_keeps_its_exit_code() -> None:
    assert submitted("> /dev/full", state="CANCELLED").returncode == 130


def test_run_whose_stdout_is_closed_is_not_begun(tmp_path: Path) -> None:
    done = submitted(">&-")
    assert (done.returncode, (tmp_path / "ended").exists()) == (1, False)
    assert "stdout is closed" in done.stderr


@pytest.mark.slow("2> /dev/full", "<&- 2>&-")
@pytest.mark.parametrize("redirection", ["2>&-", "2> /dev/full", "<&- 2>&-"])
def test_json_of_a_run_is_whole_without_stderr(redirection: str) -> None:
    done = submitted(redirection, more=("--json",))
    assert done.returncode == 0
    assert json.loads(done.stdout)["state"] == "SUCCEEDED"


def test_stdout_that_does_not_block_is_waited_for() -> None:
    code = (
        "import fcntl, os, subprocess, sys\n"
        "read, write = os.pipe()\n"
        "os.set_blocking(write, False)\n"
        f"child = subprocess.Popen([sys.executable, '-c', {PRINT_MUCH!r}], stdout=write)\n"
        "os.close(write)\n"
        "total = 0\n"
        "while data := os.read(read, 65536): total += len(data)\n"
        "print(total, child.wait())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1000001 0\n", "")


PRINT_MUCH = """
import click
from raydist.cli.screen import standard_streams
standard_streams.prepare()
click.echo("x" * 1_000_000)
"""
