"""The display of a run in a notebook's cell, without a notebook."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import raydist
from raydist.errors import StorageError
from raydist.outcome.result import RunError, RunProgress, RunResult
from raydist.outcome.status import RunState
from raydist.runs.handle import RunHandle
from raydist.runs.notebook import LiveDisplay, display_in_cell
from raydist.spec.tasks import TaskId
from tests.support.fakes import make_plan


class Screen:
    """What was shown, and a clock that a test sets."""

    def __init__(self, name: str = "digits-1") -> None:
        self.shown: list[Mapping[str, str]] = []
        self.now_s = 0.0
        self.error: Exception | None = None
        self.display = LiveDisplay(name, self._show, clock=lambda: self.now_s)

    def _show(self, bundle: Mapping[str, str]) -> None:
        if self.error is not None:
            raise self.error
        self.shown.append(bundle)

    def progress(self, step: int, *, at_s: float, **metrics: float) -> None:
        self.now_s = at_s
        self.display.take(
            {
                "event": "progress",
                "phase": "starting tasks (1 of 2 ready)",
                "step": step,
                "num_steps": 400,
                "epoch": step // 100,
                "num_epochs": 4,
                "steps_per_s": 12.0,
                "metrics": metrics,
            }
        )

    def state(self, state: str, error: Any = None) -> None:
        self.display.take({"event": "state", "state": state, "error": error})


def test_text_says_where_the_run_stands() -> None:
    screen = Screen()
    screen.state("STARTING")
    screen.progress(0, at_s=1.0)
    screen.state("RUNNING")
    screen.progress(150, at_s=3.0, accuracy=0.5, loss=0.25)
    screen.state("SUCCEEDED")
    assert [bundle["text/plain"] for bundle in screen.shown] == [
        "digits-1: STARTING",
        "digits-1: STARTING  starting tasks (1 of 2 ready)",
        "digits-1: RUNNING  starting tasks (1 of 2 ready)",
        "digits-1: RUNNING  epochs 1/4, steps 150/400, 12 steps/s  loss 0.25, accuracy 0.5",
        "digits-1: SUCCEEDED  epochs 1/4, steps 150/400  loss 0.25, accuracy 0.5",
    ]


def test_progress_is_shown_twice_a_second_and_a_state_at_once() -> None:
    screen = Screen()
    for number in range(21):
        screen.progress(number + 1, at_s=number / 10, loss=1.0)
    assert len(screen.shown) == 5
    screen.state("SUCCEEDED")
    assert "steps 21/400" in screen.shown[-1]["text/plain"]


@pytest.mark.slow
def test_curves_have_an_end_and_what_is_not_finite_is_no_point() -> None:
    screen = Screen()
    for step in range(1, 2001):
        screen.progress(step, at_s=step, loss=float("nan") if step % 100 == 0 else 1 / step, accuracy=0.5)
    shown = screen.shown[-1]["text/html"]
    [curve, other] = [part.partition("'")[0] for part in shown.split("points='")[1:]]
    places = [tuple(map(float, place.split(","))) for place in curve.split()]
    assert 100 < len(places) <= 400
    assert [place[0] for place in places] == sorted(place[0] for place in places)
    assert (places[0], places[-1]) == ((0.0, 2.0), (180.0, 46.0))
    assert len({place.split(",")[1] for place in other.split()}) == 1  # a constant
    assert "nan" not in curve


def test_what_others_wrote_is_escaped() -> None:
    screen = Screen(name="<b>")
    screen.progress(1, at_s=0.0, **{"<i>": 1.0})
    screen.progress(2, at_s=1.0, **{"<i>": 2.0})
    screen.display.take({"event": "note", "message": "<script>alert(1)</script>"})
    screen.state("FAILED", {"message": "bad <img>"})
    shown = screen.shown[-1]["text/html"]
    assert not any(text in shown for text in ("<i>", "<script", "<img", "<b><b>"))
    assert "bad &lt;img&gt;" in shown
    assert "&lt;i&gt; 2" in shown


def test_run_goes_on_where_the_display_fails(caplog: pytest.LogCaptureFixture) -> None:
    screen = Screen()
    screen.error = OSError("closed")
    screen.state("RUNNING")
    screen.state("SUCCEEDED")
    assert [record.message for record in caplog.records] == [
        "run digits-1 cannot be shown in the notebook any more"
    ]


def test_end_shows_the_figures_of_the_result_and_hooks_get_each_event() -> None:
    screen, told = Screen(), []
    hook = screen.display.beside(told.append)
    hook({"event": "state", "state": "SUCCEEDED", "error": None})
    screen.progress(7, at_s=1.0, loss=0.5)
    progress = RunProgress(epoch=4)
    result = RunResult(
        run="r", state=RunState.SUCCEEDED, steps=400, storage="/r", metrics={"loss": 0.25}, progress=progress
    )
    screen.display.end(result)
    assert told == [{"event": "state", "state": "SUCCEEDED", "error": None}]
    assert screen.shown[-1]["text/plain"] == "digits-1: SUCCEEDED  epochs 4/4, steps 400/400  loss 0.25"


def test_outside_of_a_kernel_nothing_is_shown_or_imported() -> None:
    known = set(sys.modules)
    assert display_in_cell("r") is None
    assert set(sys.modules) == known


def test_result_is_short_as_text_and_escaped_as_html() -> None:
    error = RunError(type="ValueError", message="bad <b>", task=TaskId.parse("worker/0"), attempt=0)
    result = RunResult(
        run="r", state=RunState.FAILED, steps=7, storage="/my runs/r", metrics={"loss": 0.5}, error=error
    )
    assert (
        repr(result) == "RunResult(run='r', state=FAILED, steps=7, metrics={'loss': 0.5}, error='ValueError')"
    )
    shown = result._repr_html_()
    assert "ValueError: bad &lt;b&gt;" in shown
    assert "raydist ui r --storage &#x27;/my runs&#x27;" in shown


def test_handle_and_plan_are_short() -> None:
    class Home:
        is_lost = False
        num_asked = 0

        def status(self) -> RunResult:
            self.num_asked += 1
            if self.is_lost:
                raise StorageError("cannot <read>")
            return RunResult(run="r", state=RunState.RUNNING, steps=3, storage="/runs/r")

        def wait(self, timeout_s: float | None) -> bool:
            return True

        def request_stop(self) -> None: ...

    home = Home()
    handle = RunHandle("r", home, storage="/runs")
    assert repr(handle) == "RunHandle('r')"
    assert home.num_asked == 0  # which would read storage
    assert "r: RUNNING" in handle._repr_html_()
    home.is_lost = True
    assert repr(handle) == "RunHandle('r', last seen RUNNING, steps=3)"
    assert home.num_asked == 1
    assert "cannot &lt;read&gt;" in handle._repr_html_()
    plan = make_plan(notes=("a <note>",))
    assert repr(plan) == f"Plan({plan.job.name!r}, multi_worker_mirrored, 2 worker)"
    assert "a &lt;note&gt;" in plan._repr_html_()


FAILING = """
from raydist.outcome.result import RunError, RunResult
from raydist.outcome.status import RunState
from raydist.runs.handle import checked
from raydist.spec.tasks import TaskId

place = 'Traceback (most recent call last):\\n  File "job.py", line 3, in train\\nKeyError: 7\\n'
error = RunError(type="KeyError", message="7", task=TaskId.parse("worker/0"), attempt=0, traceback=place)
checked(RunResult(run="r", state=RunState.FAILED, steps=7, storage="/runs/r", error=error))
"""
SHELL = f"""
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_cell("import raydist; raydist.plan('nothing.py')")
print("=====")
shell.run_cell({FAILING!r})
"""


def test_error_in_a_cell_shows_the_frames_of_the_user_alone_and_once(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SHELL], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    mistake, _, failure = found.stdout.partition("=====")
    assert "JobFileError: there is no job file nothing.py" in mistake
    assert failure.count('File "job.py", line 3, in train') == 1
    assert "In worker/0: Traceback" in failure
    for shown in (mistake, failure):
        assert "<module>" in shown
        assert f"{Path(raydist.__file__).parent}/" not in shown
        assert "site-packages" not in shown


def test_output_of_a_script_is_printed_in_the_cell(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen()
    some = [f"worker/{index}" for index in range(1, 6)]
    for attempt, tasks in ((0, []), (0, ["worker/1"]), (1, some)):
        lines = [{"text": "a", "tasks": tasks}]
        screen.display.take({"event": "output", "attempt": attempt, "lines": lines})
    assert capsys.readouterr().out.splitlines() == [
        *("a", "[worker/1] a", "==> attempt 1 <==", "[worker/1, worker/2, worker/3 and 2 more] a")
    ]
    assert screen.shown == []
