"""What a person sees while a run is running: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TextIO

from raydist.cli.screen import output
from raydist.spec.text import escaped, loss_first, of_total

if TYPE_CHECKING:
    import rich.live

PLAIN_EVERY_S = 5.0
_MAX_METRICS = 4


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands, as far as its line needs it.

    Attributes:
      phase: What it does before the first step (`waiting for 2 tasks`); unused once steps continue.
      epoch: Epochs completed; None where the train function knows none.
      num_epochs: None while unknown, as are `num_steps` and `steps_per_s`.
      metrics: The newest values, the ones to be shown first at the front.
      run_s: Seconds since the run was submitted.
      hint: What would show more than the phase; None where nothing is missing.
    """

    phase: str = "starting"
    attempt: int = 0
    epoch: int | None = None
    num_epochs: int | None = None
    step: int = 0
    num_steps: int | None = None
    steps_per_s: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    run_s: float = 0.0
    hint: str | None = None


def progress_line(progress: Progress) -> str:
    """Returns `epoch 2/3  step 340/1200  212 steps/s  loss 0.3112  0:01:12`, of what is known."""
    parts = [f"attempt {progress.attempt}"] if progress.attempt else []
    if progress.step == 0:
        hint = [progress.hint] if progress.hint else []
        return "  ".join([*parts, progress.phase, duration(progress.run_s), *hint])
    if progress.epoch is not None:
        parts.append(f"epoch {of_total(_epoch_in_work(progress), progress.num_epochs)}")
    parts.append(f"step {of_total(progress.step, progress.num_steps)}")
    if progress.steps_per_s is not None:
        parts.append(f"{rate(progress.steps_per_s)} steps/s")
    parts += [f"{name} {value:.4g}" for name, value in loss_first(progress.metrics)[:_MAX_METRICS]]
    return "  ".join([*parts, duration(progress.run_s)])


def metrics_line(metrics: Mapping[str, float]) -> str:
    """Returns `loss 0.3112  accuracy 0.89  …`, the loss first."""
    return "  ".join(f"{name} {value:.4g}" for name, value in loss_first(metrics))


def duration(seconds: float) -> str:
    """Returns `0:01:12`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}"


def rate(per_s: float) -> str:
    """Returns a rate with the digits that mean something: `0.52`, `9.8`, `212`."""
    if per_s >= 100:
        return f"{per_s:.0f}"
    return f"{per_s:.1f}" if per_s >= 1 else f"{per_s:.2f}"


def _epoch_in_work(progress: Progress) -> int:
    completed = progress.epoch or 0
    return completed + 1 if progress.num_epochs is None else min(completed + 1, progress.num_epochs)


class ProgressView(Protocol):
    """Shows a run while it is running."""

    def show(self, progress: Progress) -> None:
        """Shows the newest state; called as often as there is news."""

    def say(self, sentence: str) -> None:
        """Prints a sentence that stays."""


class PlainView:
    """Lines for a log file: one at each finished epoch and change of phase, else one every 5 s."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._last: Progress | None = None
        self._shown_at_s = 0.0

    def show(self, progress: Progress) -> None:
        if self._last is not None and not self._is_due(progress, self._last):
            return
        self._last, self._shown_at_s = progress, self._clock()
        self.say(progress_line(progress))

    def say(self, sentence: str) -> None:
        output.show(sentence, stream=self._stream)

    def _is_due(self, progress: Progress, last: Progress) -> bool:
        if progress.step == 0:
            said = (last.phase, last.attempt, last.hint)
            return (progress.phase, progress.attempt, progress.hint) != said
        if (progress.epoch, progress.attempt) != (last.epoch, last.attempt) or last.step == 0:
            return True
        return progress.step != last.step and self._clock() - self._shown_at_s >= PLAIN_EVERY_S


class LiveView:
    """One line at the foot of a terminal that is written over; sentences scroll by above it."""

    def __init__(self, live: rich.live.Live) -> None:
        self._live = live

    def show(self, progress: Progress) -> None:
        import rich.text

        line = rich.text.Text(
            escaped(progress_line(progress)), style="cyan", no_wrap=True, overflow="ellipsis"
        )
        self._live.update(line)

    def say(self, sentence: str) -> None:
        self._live.console.print(escaped(sentence), markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def open_view(stream: TextIO) -> Iterator[ProgressView]:
    """Opens the view that fits `stream`."""
    if not stream.isatty():
        yield PlainView(stream)
        return
    import rich.console
    import rich.live

    console = rich.console.Console(file=stream)
    with rich.live.Live(console=console, refresh_per_second=4, transient=True) as live:
        yield LiveView(live)
