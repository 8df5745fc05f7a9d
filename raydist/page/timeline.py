"""What each task did when, from the events of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydist.outcome.status import RunState, TaskState
from raydist.storage.limits import MAX_TIME_S

Event = Mapping[str, Any]

_WAITING, _STARTING, _RUNNING = "waiting", "starting", "running"
# What a task's state is called on the timeline; None ends its bar.
_STAGES: Mapping[str, str | None] = {
    TaskState.PENDING.value: _WAITING,
    TaskState.STARTING.value: _STARTING,
    TaskState.RUNNING.value: _RUNNING,
    **{state.value: None for state in TaskState if state.is_terminal},
}
_ENDS = tuple(state for state in RunState if state.is_terminal)
_MARKED = ("task_failed", "task_back", "task_given_up", "restarting", "restarted", "note")


def timeline(
    events: Sequence[Event], *, tasks: Mapping[str, str], begun_s: float | None, now_s: float
) -> dict[str, Any]:
    """Returns the bars of each task, the marks on them, and the attempts.

    Runs of a raydist that did not tell its tasks' states have bars of the attempts' states instead.

    Args:
      tasks: Those of the last attempt, each with its state as of now. The newest events of a live run
        may not be stored yet.
      begun_s: Unix time of the run's first record; None where that is unknown.
      now_s: Where the bars of a live run end.
    """
    story = _Story(tasks=list(tasks), knows_tasks=any(event.get("event") == "task" for event in events))
    for event in events:
        story.take(event)
    times = [at_s for at_s in map(_time, events) if at_s is not None]
    end_s = story.ended_s or max(now_s, *times, begun_s or 0.0)
    story.catch_up(tasks, max(times, default=end_s))
    story.close(end_s, is_over=story.ended_s is not None)
    return {
        "begun_s": min([*times, *([begun_s] if begun_s else [])], default=end_s),
        "end_s": end_s,
        "rows": [{"task": task, "bars": bars} for task, bars in story.rows.items()],
        "marks": story.marks,
        "attempts": story.attempts,
    }


@dataclass
class _Story:
    tasks: Sequence[str]
    knows_tasks: bool
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    marks: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    ended_s: float | None = None
    _open: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Takes the next event; one that is not as raydist writes it is passed over."""
        name, at_s = event.get("event"), _time(event)
        if at_s is None:
            return
        if name == "state":
            self._take_state(event, at_s)
        elif name == "task" and isinstance(event.get("task"), str):
            self._take_task(event, at_s)
        elif name in _MARKED:
            self._take_mark(event, at_s)

    def catch_up(self, states: Mapping[str, str], at_s: float) -> None:
        """Begins the present stages of the tasks, where no event did."""
        for task, state in states.items():
            bar, stage = self._open.get(task), _STAGES.get(state)
            if bar is not None and stage is not None and bar["stage"] != stage:
                self._begin(task, stage, at_s, bar)

    def close(self, end_s: float, *, is_over: bool) -> None:
        """Ends what is still open."""
        for bar in self._open.values():
            bar |= {"to_s": end_s, "end": "stopped" if is_over else "running"}
        if self.attempts:
            self.attempts[-1].setdefault("to_s", end_s)

    def _take_state(self, event: Event, at_s: float) -> None:
        state, attempt = event.get("state"), event.get("attempt", 0)
        self.ended_s = at_s if state in _ENDS else None  # a resumed run continues
        if state == RunState.STARTING:
            if self.attempts:
                self.attempts[-1].setdefault("to_s", at_s)
            self._end_all(at_s)
            self.attempts.append({"attempt": attempt, "from_s": at_s})
            for task in self.tasks:
                self._begin(task, _WAITING if self.knows_tasks else _STARTING, at_s, event)
        elif state == RunState.RUNNING and not self.knows_tasks:
            for task in self.tasks:
                self._begin(task, _RUNNING, at_s, event)
        elif state in _ENDS:
            self._end_all(at_s)
            if self.attempts:
                self.attempts[-1].setdefault("to_s", at_s)

    def _take_task(self, event: Event, at_s: float) -> None:
        task, state = event["task"], event.get("state")
        stage = _STAGES.get(state) if isinstance(state, str) else None
        if stage is None:
            self._end(task, at_s, end=str(state).lower())
        else:
            self._begin(task, stage, at_s, event)

    def _take_mark(self, event: Event, at_s: float) -> None:
        name, task = event["event"], event.get("task")
        if name == "task_failed" and isinstance(task, str) and not self.knows_tasks:
            self._end(task, at_s, end="failed")
        text = event.get("message") or name
        self.marks.append({"at_s": at_s, "kind": name, "task": task, "text": str(text)})

    def _begin(self, task: str, stage: str, at_s: float, event: Event) -> None:
        self._end(task, at_s, end="")
        incarnation = event.get("incarnation", 0)
        bar = {"stage": stage, "from_s": at_s, "attempt": event.get("attempt", 0)}
        bar |= {"incarnation": incarnation, "host": event.get("host")}
        self._open[task] = bar
        self.rows.setdefault(task, []).append(bar)

    def _end(self, task: str, at_s: float, *, end: str) -> None:
        bar = self._open.pop(task, None)
        if bar is not None:
            bar |= {"to_s": at_s, "end": end}

    def _end_all(self, at_s: float) -> None:
        for task in list(self._open):
            self._end(task, at_s, end="stopped")


def _time(event: Event) -> float | None:
    at_s = event.get("at_s")
    if isinstance(at_s, bool) or not isinstance(at_s, int | float):
        return None
    return float(at_s) if 0 <= at_s <= MAX_TIME_S else None
