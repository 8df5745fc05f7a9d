"""What a notebook shows of a run while it is running: one display, which is replaced."""

from __future__ import annotations

import html
import logging
import math
import sys
import time
import uuid
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from raydist.outcome.printed import OutputText
from raydist.outcome.result import RunResult
from raydist.spec.text import facts_html, loss_first, metrics_text, of_total

logger = logging.getLogger(__name__)

Hook: TypeAlias = Callable[[Mapping[str, Any]], None]
# Shows a bundle of MIME types, in the place of the one before.
Show: TypeAlias = Callable[[Mapping[str, str]], object]

_EVERY_S = 0.5
_MAX_CURVES, _MAX_POINTS, _MAX_SENTENCES = 4, 400, 3
_WIDTH, _HEIGHT = 180, 48
_SAID = ("note", "attempt", "straggler", "task_back", "task_given_up", "restarting", "restarted")


def hide_advice() -> None:
    """In a kernel, hides what Ray and the tqdm that it imports advise to install, when they are imported.

    It is ipywidgets, of which nothing here makes use.
    """
    if _kernel_shell() is not None:
        logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", message="IProgress not found")


def display_in_cell(run: str) -> LiveDisplay | None:
    """Returns what shows the run in the cell that runs; None outside of a Jupyter kernel."""
    if _kernel_shell() is None:
        return None
    display: Any = sys.modules["IPython.display"].display
    display_id, is_shown = uuid.uuid4().hex, False

    def show(bundle: Mapping[str, str]) -> None:
        nonlocal is_shown
        display(dict(bundle), raw=True, display_id=display_id, update=is_shown)
        is_shown = True

    return LiveDisplay(run, show)


class LiveDisplay:
    """State, progress, curves and the newest sentences of one run."""

    def __init__(self, run: str, show: Show, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._show = show
        self._clock = clock
        self._shown_at_s = -math.inf
        self._state = "STARTING"
        self._progress: Mapping[str, Any] = {}
        self._curves: dict[str, list[tuple[int, float]]] = {}
        self._sentences: deque[str] = deque(maxlen=_MAX_SENTENCES)
        self._output = OutputText()
        self._is_broken = False

    def beside(self, on_event: Hook | None) -> Hook:
        """Returns a hook that takes each event, and gives it to `on_event` too."""

        def tell(event: Mapping[str, Any]) -> None:
            self.take(event)
            if on_event is not None:
                on_event(event)

        return tell

    def end(self, result: RunResult) -> None:
        """Shows the final figures, which come after the last progress event."""
        if not self._progress:
            return
        progress, metrics = result.progress, dict(result.metrics) or self._progress["metrics"]
        epoch = self._progress["epoch"] if progress is None else progress.epoch
        self._progress = {**self._progress, "step": result.steps, "epoch": epoch, "metrics": metrics}
        self._add_points(result.steps, metrics)
        self._replace()

    def take(self, event: Mapping[str, Any]) -> None:
        """Takes an event of the run; shows progress twice a second at most."""
        kind = event["event"]
        if kind == "progress":
            self._progress = event
            self._add_points(event["step"], event["metrics"])
        elif kind == "state":
            self._state = event["state"]
            if event["error"]:
                self._sentences.append(event["error"]["message"])
        elif kind in _SAID:
            self._sentences.append(event["message"])
        elif kind == "output":
            print(self._output.of(event))
            return
        elif kind != "planned":
            return
        if kind != "progress" or self._clock() - self._shown_at_s >= _EVERY_S:
            self._replace()

    def _replace(self) -> None:
        if self._is_broken:
            return
        self._shown_at_s = self._clock()
        try:
            self._show({"text/plain": self.text(), "text/html": self.html()})
        except Exception:  # the front end's; the run continues
            self._is_broken = True
            logger.warning("run %s cannot be shown in the notebook any more", self._run, exc_info=True)

    def text(self) -> str:
        """Returns one line."""
        return "  ".join([f"{self._run}: {self._state}", *(text for _, text in self._facts() if text)])

    def html(self) -> str:
        curves = "".join(_curve(name, points) for name, points in self._ordered())
        sentences = "".join(f"<div>{html.escape(one)}</div>" for one in self._sentences)
        return facts_html(f"{self._run}: {self._state}", self._facts()) + curves + sentences

    def _facts(self) -> list[tuple[str, str]]:
        known = self._progress
        if not known:
            return []
        if not known["step"]:
            return [] if self._is_over else [("progress", known["phase"])]
        epoch, rate = known["epoch"], known["steps_per_s"]
        parts = [
            "" if epoch is None else f"epochs {of_total(epoch, known['num_epochs'])}",
            f"steps {of_total(known['step'], known['num_steps'])}",
            "" if rate is None or self._is_over else f"{rate:.3g} steps/s",
        ]
        metrics = dict(loss_first(known["metrics"])[:_MAX_CURVES])
        return [("progress", ", ".join(filter(None, parts))), ("metrics", metrics_text(metrics))]

    @property
    def _is_over(self) -> bool:
        return self._state in ("SUCCEEDED", "FAILED", "CANCELLED")

    def _add_points(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            points = self._curves.setdefault(name, [])
            if value is None or not math.isfinite(value) or (points and points[-1] == (step, value)):
                continue
            while points and points[-1][0] > step:  # an attempt that began at an earlier checkpoint
                points.pop()
            points.append((step, value))
            if len(points) > _MAX_POINTS:
                del points[1:-1:2]

    def _ordered(self) -> list[tuple[str, list[tuple[int, float]]]]:
        return [one for one in loss_first(self._curves) if len(one[1]) > 1][:_MAX_CURVES]


def _curve(name: str, points: list[tuple[int, float]]) -> str:
    """Returns a small picture of values by step."""
    first, last = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    places = " ".join(
        f"{_WIDTH * (step - first) / max(1, last - first):.1f},"
        f"{_HEIGHT - 2 - (_HEIGHT - 4) * (value - low) / ((high - low) or 1.0):.1f}"
        for step, value in points
    )
    return (
        f"<figure style='display:inline-block;margin:4px 12px 4px 0'><svg width='{_WIDTH}' "
        f"height='{_HEIGHT}'><polyline points='{places}' fill='none' stroke='#1f77b4' stroke-width='1.5'/>"
        f"</svg><figcaption>{html.escape(name)} {points[-1][1]:.4g}</figcaption></figure>"
    )


def _kernel_shell() -> Any:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None
