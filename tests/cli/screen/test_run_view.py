"""What of a run's record is shown in red, and what of a script without steps."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from raydist.cli.screen import output, run_view
from raydist.outcome.status import SHOW_PROGRESS
from raydist.storage.run_storage import open_run
from tests.support.records import make_record


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("note: not finite after step 3: loss is nan", True),
        ("metrics     loss nan  accuracy 0.1", True),
        ("metrics     loss 0.5  val_loss inf", True),
        ("metrics     finance 0.5  nano 1", False),
        ("note: a filter is not finite", False),
    ],
)
def test_values_that_are_not_finite_are_alarming(line: str, expected: bool) -> None:
    assert run_view.is_alarming(line) is expected


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown"), [(_Terminal(), "\x1b[31mnan\x1b[0m\n"), (io.StringIO(), "nan\n")]
)
def test_what_is_alarming_is_red_on_a_terminal(stream: io.StringIO, shown: str) -> None:
    output.show("nan", stream=stream, is_alarming=True)
    assert stream.getvalue() == shown


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"state": "CANCELLED"}, True),
        ({"steps": 3}, False),
        ({"timings": {"tasks_ready": 8.0, "total": 67.0}}, False),
        ({"timings": {"total": 90.0}}, False),
        ({"spec": {"entry_point": {"file": "main.py", "function": "train"}}}, False),
        ({"spec": {"entry_point": {"function": ""}}}, False),
        ({"notes": [f"main.py ended without reporting a step: {SHOW_PROGRESS}"]}, False),
    ],
)
def test_status_of_a_script_without_steps_tells_which_calls_show_progress(
    changes: dict[str, Any], is_told: bool, tmp_path: Path
) -> None:
    facts = {
        "state": "RUNNING",
        "spec": {"entry_point": {"file": "main.py", "function": ""}},
        "timings": {"tasks_ready": 8.0, "total": 70.0},
        **changes,
    }
    record = make_record(open_run(str(tmp_path), run="r"), **facts)
    [steps] = [line for line in run_view.record_lines(record) if line.startswith("steps ")]
    assert (SHOW_PROGRESS in steps) is is_told
    assert (run_view.progress_of(record).hint is not None) is is_told
