from __future__ import annotations

import io

import pytest

from raydist.cli.screen import progress
from raydist.cli.screen.progress import PlainView, Progress, open_view, progress_line


@pytest.mark.parametrize(
    ("state", "line"),
    [
        pytest.param(
            Progress(phase="waiting for 2 tasks", run_s=4.2),
            "waiting for 2 tasks  0:00:04",
            id="before-steps",
        ),
        pytest.param(
            Progress(
                epoch=1,
                num_epochs=3,
                step=340,
                num_steps=1200,
                steps_per_s=211.7,
                metrics={"accuracy": 0.891, "loss": 0.31123},
                run_s=72.9,
            ),
            "epoch 2/3  step 340/1200  212 steps/s  loss 0.3112  accuracy 0.891  0:01:12",
            id="fit",
        ),
        pytest.param(
            Progress(epoch=3, num_epochs=3, step=1200, num_steps=1200, run_s=100),
            "epoch 3/3  step 1200/1200  0:01:40",
            id="last-epoch-done",
        ),
        pytest.param(
            Progress(step=7, metrics={"loss": 2.0}, run_s=3661), "step 7  loss 2  1:01:01", id="nothing-known"
        ),
        pytest.param(
            Progress(attempt=2, phase="starting", run_s=60),
            "attempt 2  starting  0:01:00",
            id="second-attempt",
        ),
        pytest.param(
            Progress(phase="running", run_s=72, hint="no step reported"),
            "running  0:01:12  no step reported",
            id="script-without-steps",
        ),
    ],
)
def test_line_tells_what_is_known(state: Progress, line: str) -> None:
    assert progress_line(state) == line


@pytest.mark.parametrize(("per_s", "text"), [(0.523, "0.52"), (9.84, "9.8"), (211.7, "212")])
def test_rate_shows_the_digits_that_mean_something(per_s: float, text: str) -> None:
    assert progress.rate(per_s) == text


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def shown_lines(states: list[tuple[float, Progress]]) -> list[str]:
    clock, stream = Clock(), io.StringIO()
    view = PlainView(stream, clock=clock)
    for at_s, state in states:
        clock.now_s = at_s
        view.show(state)
    return stream.getvalue().splitlines()


def test_plain_view_prints_each_phase_once() -> None:
    lines = shown_lines(
        [
            (0, Progress(phase="starting")),
            (9, Progress(phase="starting")),
            (10, Progress(phase="go")),
            (90, Progress(phase="go", hint="no step")),
            (91, Progress(phase="go", hint="no step")),
        ]
    )
    assert lines == ["starting  0:00:00", "go  0:00:00", "go  0:00:00  no step"]


def test_plain_view_prints_steps_every_five_seconds_and_epochs_at_once() -> None:
    lines = shown_lines(
        [
            (0.0, Progress(step=1, epoch=0)),
            (1.0, Progress(step=2, epoch=0)),
            (5.0, Progress(step=3, epoch=0)),
            (5.1, Progress(step=4, epoch=1)),
            (99.0, Progress(step=4, epoch=1)),
        ]
    )
    assert [line.split("  ")[1] for line in lines] == ["step 1", "step 3", "step 4"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_terminal_gets_the_line_and_sentences_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with open_view(stream) as view:
        view.show(Progress(step=7, metrics={"loss": 0.25}))
        view.say("note: [two] workers")
    assert "note: [two] workers" in stream.getvalue()
    assert "step 7  loss 0.25" in stream.getvalue()
