"""What a run's job, its libraries and its params have named cannot control the terminal of a reader."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

import raydist as package
from raydist.cli.screen import run_view
from raydist.cli.screen.progress import PlainView, Progress
from raydist.metrics.parquet import MetricsWriter
from raydist.outcome.result import RunResult
from raydist.outcome.status import MetricRow, RunState, Scope
from raydist.spec.tasks import TaskId
from raydist.storage.run_record import RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from tests.cli.conftest import Run
from tests.support.records import make_record

TITLE = "\x1b]0;owned\x07\x1b[2J\x9b31m"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@pytest.fixture
def run() -> RunStorage:
    """A failed run with a control sequence in everything that its job could name."""
    storage = open_run("raydist_runs", run="digits-1")
    record = {
        "state": "FAILED",
        "attempts": 1,
        "steps": 3,
        "metrics": {f"loss{TITLE}": 0.5},
        "notes": [f"note of {TITLE}"],
        "spec": {"name": "digits-1", "params": {"rate": TITLE, f"key{TITLE}": 1}, "args": [TITLE]},
        "error": {"type": "ValueError", "message": f"message {TITLE}", "task": "worker/0", "attempt": 0},
        "best": {"name": f"score{TITLE}", "value": 0.5, "step": 3, "mode": "max", "checkpoint": None},
    }
    RunRecordStore(storage).replace(make_record(storage, **record))
    writer = MetricsWriter.open(storage, task=TaskId.parse("worker/0"), attempt=0)
    row: dict[str, Any] = {"run": "digits-1", "attempt": 0, "task": TaskId.parse("worker/0"), "epoch": 1}
    for step in (1, 2, 3):
        name = f"loss{TITLE}"
        writer.append([MetricRow(**row, step=step, wall_time=1.0, scope=Scope.GLOBAL, name=name, value=0.5)])
    writer.flush()
    text = f"\x1b[31mred\x1b[0m{TITLE}\u202e\u2066\n"
    storage.write_text(storage.log_segment(TaskId.parse("worker/0"), attempt=0, seq=0), text)
    return storage


@pytest.mark.parametrize(
    "command",
    [
        *(["status"], ["status", "--all"], ["wait"], ["metrics"], ["metrics", "--format", "csv"]),
        ["metrics", "--plot"],
    ],
    ids=" ".join,
)
def test_commands_about_a_run_show_them_escaped(raydist: Run, run: RunStorage, command: list[str]) -> None:
    name, *options = command
    _, out, err = raydist(name, run.run, *options)
    assert r"\x1b]0;owned\x07" in out + err
    assert not CONTROL.search(out + err)


@pytest.mark.parametrize("command", ["status", "status --all", "metrics"])
def test_json_has_the_names_as_they_are(raydist: Run, run: RunStorage, command: str) -> None:
    out = raydist(*command.split(), run.run, "--json")[1]
    assert not CONTROL.search(out)
    assert f"loss{TITLE}" in walk(json.loads(out))


def walk(value: Any) -> Any:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def test_columns_of_a_table_are_as_wide_as_what_is_shown(raydist: Run, run: RunStorage) -> None:
    header, row = raydist("list")[1].splitlines()
    assert header.index("started") == row.index(re.findall(r"\d{4}-\d\d-\d\d", row)[0])
    assert f"score{SHOWN} 0.5" in row


def test_logs_drop_them_unless_they_are_asked_for(raydist: Run, run: RunStorage) -> None:
    arguments = ("logs", run.run, "--task", "worker/0")
    assert raydist(*arguments)[1] == "red\n"
    assert raydist(*arguments, "--raw")[1] == f"\x1b[31mred\x1b[0m{TITLE}\u202e\u2066\n"


def test_logs_on_a_terminal_keep_colours(
    raydist: Run, run: RunStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert raydist("logs", run.run, "--task", "worker/0")[1] == "\x1b[31mred\x1b[0m\n"


def test_progress_and_the_end_of_a_run_show_them_escaped() -> None:
    screen = io.StringIO()
    view = PlainView(screen)
    view.say(f"note: {TITLE}")
    view.show(Progress(step=1, metrics={f"loss{TITLE}": 0.5}))
    facts: dict[str, Any] = {"metrics": {TITLE: 1.0}, "notes": (TITLE,), "storage": "/runs/a"}
    result = RunResult(run="a", state=RunState.FAILED, **facts)
    run_view.print_end(result, said=(), stream=screen)
    assert screen.getvalue().count(SHOWN) == 4
    assert not CONTROL.search(screen.getvalue())


def test_nothing_of_the_command_line_prints_past_the_one_place() -> None:
    folder = Path(package.__file__).parent / "cli"
    printing = re.compile(r"click\.s?echo\(|(?<![\w.])(?<!def )print\(|sys\.std(out|err)\.write\(")
    found = [path.name for path in sorted(folder.rglob("*.py")) if printing.search(path.read_text())]
    assert found == ["output.py"]


@pytest.mark.parametrize("at_s", [float("nan"), float("inf"), -1.0, 1e300, None])
def test_time_that_is_none_is_shown_as_unknown(at_s: float | None) -> None:
    assert run_view.local_time(at_s) == "-"
