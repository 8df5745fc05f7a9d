"""How a run's record is shown to a person: how far it is, and how it ended."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO

from raydist.cli.screen import guide_pages, output
from raydist.cli.screen.progress import Progress, duration, metrics_line, rate
from raydist.outcome.codec import as_plain
from raydist.outcome.result import (
    RunError,
    RunProgress,
    RunResult,
    Straggler,
    StragglerCause,
    command_for,
)
from raydist.outcome.status import NOT_FINITE, SHOW_PROGRESS, RunState, steps_hint
from raydist.spec.best import Best
from raydist.spec.text import DETAIL, counted
from raydist.storage.limits import MAX_TIME_S

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord

_TOLD = ("task_back", "task_given_up", "restarting", "restarted", "attempt")
_RESUMED = "the run was resumed"


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One interruption of a run.

    Attributes:
      event: `task_back` or `task_given_up` for a task that died while its attempt continued; `restarting`,
        then `restarted`, for a planned new attempt; `attempt` for one that was lost or has another size;
        `resumed` for a run that was resumed by hand.
      at_s: Unix time, seconds.
      attempt: The attempt that was interrupted, for `restarted` the one after; None for `resumed`.
      message: The cause, and what was done.
    """

    event: str
    at_s: float
    attempt: int | None
    message: str


def incidents_of(events: Iterable[Mapping[str, Any]]) -> list[Incident]:
    """Returns the interruptions that the events tell of, in their order.

    An event of another shape, which an older raydist or damage may have left, is skipped.
    """
    found: list[Incident] = []
    is_planned = False
    for event in events:
        match event:
            case {"event": str(name), "at_s": int() | float() as at_s, **rest}:
                pass
            case _:
                continue
        if name == "planned":
            if is_planned:
                found.append(Incident(event="resumed", at_s=at_s, attempt=None, message=_RESUMED))
            is_planned = True
            continue
        match rest:
            case {"attempt": int(attempt), "message": str(message)} if name in _TOLD:
                if name == "restarted":  # says what `restarting` said, and what it cost
                    found = [one for one in found if not _is_begun_by(one, message)]
                found.append(Incident(event=name, at_s=at_s, attempt=attempt, message=message))
    return found


def _is_begun_by(incident: Incident, message: str) -> bool:
    return incident.event == "restarting" and message.startswith(incident.message)


_TASK_COLUMNS = (
    *("task", "state", "steps", "lag", "steps/s", "input wait", "collective wait"),
    *("host", "pid", "address"),
)
# Left out where no task measures it.
_WAITS = {"input wait": "input_wait", "collective wait": "collective_wait"}
_NON_FINITE = re.compile(rf"note: {NOT_FINITE}|(metrics|best) .*\b(nan|inf)\b")
_KEYS = {"lag": "lag_steps", "steps/s": "steps_per_s"}


def how_far(state: RunState, steps: int) -> str:
    """Returns `SUCCEEDED after 30 steps`; steps of a loop that does not report are unknown."""
    return f"{state.value} after {counted(steps, 'step')}" if steps else f"{state.value}, no steps reported"


def record_lines(
    record: RunRecord, incidents: Sequence[Incident] = (), *, has_details: bool = False
) -> list[str]:
    """Returns run.json as a person reads it: the facts, the restarts, the notes, the tasks, the error."""
    told = {incident.message for incident in incidents} | {one.message for one in record.stragglers}
    lines = [
        *fact_lines(_facts(record)),
        *incident_lines(incidents),
        *straggler_lines(record.stragglers),
        *(f"note: {note}" for note in record.notes if note not in told and not note.startswith(DETAIL)),
        *(note for note in record.notes if has_details and note.startswith(DETAIL)),
    ]
    if record.tasks:
        lines += ["", *_task_lines([as_plain(task) for task in record.tasks])]
    if record.error:
        lines += ["", *error_lines(record.error)]
    return lines


def is_alarming(line: str) -> bool:
    """Whether a line of `record_lines` tells of values that are NaN or infinite."""
    return _NON_FINITE.match(line) is not None


def _task_lines(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    columns = [
        name
        for name in _TASK_COLUMNS
        if name not in _WAITS or any(task[_WAITS[name]] is not None for task in tasks)
    ]
    return [*output.table_lines(columns, [[_cell(task, name) for name in columns] for task in tasks])]


def _cell(task: Mapping[str, Any], column: str) -> Any:
    if column not in _WAITS:
        return task[_KEYS.get(column, column)]
    share = task[_WAITS[column]]
    return None if share is None else f"{share:.0%}"


def straggler_lines(stragglers: Sequence[Straggler]) -> list[str]:
    """Returns two lines for a task that was slower than the others and is no longer, else one."""
    lines = []
    for one in stragglers:
        lines.append(f"straggler: {one.message}")
        if one.is_over:
            what = f"the network of {one.task}" if one.cause is StragglerCause.NETWORK else one.task
            lines.append(f"straggler: {what} is as fast as the others again")
    # The two ends of a slow link have one sentence.
    return list(dict.fromkeys(lines))


def fact_lines(facts: Mapping[str, object]) -> list[str]:
    """Returns a line for each fact, aligned."""
    width = max(map(len, facts), default=0)
    return [f"{name.ljust(width)}  {value}" for name, value in facts.items()]


def incident_lines(incidents: Sequence[Incident]) -> list[str]:
    """Returns a line for each interruption: when, which attempt, why."""
    return [
        f"restart: {local_time(one.at_s)}  "
        + ("" if one.attempt is None else f"attempt {one.attempt}  ")
        + one.message
        for one in incidents
    ]


def job_text(record: RunRecord) -> str | None:
    """Returns `cifar.py:train`, `main.py` or `package.main`; None for a function that is kept nowhere."""
    entry_point: Mapping[str, Any] = record.spec.get("entry_point", {})
    where, function = entry_point.get("file") or entry_point.get("module"), entry_point.get("function")
    if not where:
        return None
    return f"{where}:{function}" if function else str(where)


def duration_s(record: RunResult) -> float | None:
    """Returns the seconds from the submit, or the last resume, to the record; None where unknown."""
    return record.timings.get("total")


def best_text(best: Best | None) -> str | None:
    """Returns `val_loss 0.0312`."""
    return None if best is None else f"{best.name} {best.value:.4g}"


def progress_of(record: RunRecord) -> Progress:
    """Returns what the line of progress of a run needs, from its record."""
    told = record.progress or RunProgress()
    return Progress(
        phase=record.state.value.lower(),
        attempt=max(0, record.attempts - 1),
        epoch=told.epoch,
        num_epochs=told.num_epochs,
        step=record.steps,
        num_steps=told.num_steps,
        steps_per_s=told.steps_per_s,
        metrics=record.metrics,
        run_s=duration_s(record) or 0.0,
        hint=_steps_hint(record),
    )


def _steps_hint(record: RunRecord) -> str | None:
    """Returns which calls show progress, where a note of the run does not tell it already."""
    if any(SHOW_PROGRESS in note for note in record.notes):
        return None
    entry_point: Mapping[str, Any] = record.spec.get("entry_point", {})
    is_script = not entry_point.get("function") and job_text(record) is not None
    run_s, ready_s = duration_s(record), record.timings.get("tasks_ready")
    running_s = None if run_s is None or ready_s is None else run_s - ready_s
    return steps_hint(is_script=is_script, step=record.steps, running_s=running_s)


def _facts(record: RunRecord) -> dict[str, object]:
    facts: dict[str, object] = {"run": record.run}
    if (job := job_text(record)) is not None:
        facts["job"] = job
    if args := record.spec.get("args"):
        facts["args"] = shlex.join(args)
    if params := record.spec.get("params"):
        facts["params"] = "  ".join(f"{name}={value}" for name, value in params.items())
    facts["state"] = record.state.value
    facts["started"] = local_time(record.created_at_s)
    if (seconds := duration_s(record)) is not None:
        facts["duration"] = duration(seconds)
    facts |= {
        "strategy": f"{record.strategy or '-'} (keras {record.keras or '-'})",
        "attempts": record.attempts,
        "steps": _steps(record),
        "metrics": metrics_line(record.metrics) or "-",
    }
    if record.best is not None:
        facts["best"] = f"{best_text(record.best)} at step {record.best.step}"
    return facts | {"checkpoint": record.checkpoint or "-", "storage": record.storage}


def _steps(record: RunRecord) -> str:
    """Returns `340 of 1200, epoch 2 of 3, 212 steps/s, ETA 0:00:04`, of what is known."""
    if (hint := _steps_hint(record)) is not None:
        return f"{record.steps}: {hint}"
    told = record.progress
    if told is None:
        return str(record.steps)
    parts = [f"{record.steps}" if told.num_steps is None else f"{record.steps} of {told.num_steps}"]
    if told.epoch is not None and told.num_epochs is not None:
        parts.append(f"{told.epoch} of {told.num_epochs} epochs done")
    if not record.state.is_terminal:
        if told.steps_per_s is not None:
            parts.append(f"{rate(told.steps_per_s)} steps/s")
        if told.eta_s is not None:
            parts.append(f"ETA {duration(told.eta_s)}")
    return ", ".join(parts)


def error_lines(error: RunError) -> list[str]:
    """Returns why a run failed: the sentence, then where."""
    # The message of a failed task names the exception's type already.
    named = "" if error.type in error.message else f"{error.type}: "
    places = (("task", error.task), ("attempt", error.attempt), ("log", error.log))
    lines = [f"error: {named}{error.message}"]
    lines += [f"  {name.ljust(7)}  {place}" for name, place in places if place is not None]
    if (page := guide_pages.command_about(error.type, error.exit_code)) is not None:
        lines.append(f"  see      {page}")
    return lines


def print_error(error: RunError, *, stream: TextIO | None = None) -> None:
    """Prints why a run failed, to stdout when `stream` is omitted."""
    for line in error_lines(error):
        output.show(line, stream=stream)


def age_line(record: RunRecord) -> str | None:
    """Tells how old the record of a live run is; None once the run has ended."""
    if record.state.is_terminal or record.updated_at_s is None:
        return None
    return f"as of {duration(max(0.0, time.time() - record.updated_at_s))} ago"


def local_time(unix_s: float | None) -> str:
    """Returns `2026-11-21 09:30:12` in this machine's time zone, or `-`."""
    if unix_s is None or not 0 <= unix_s <= MAX_TIME_S:  # that of an event or a log line may be anything
        return "-"
    return f"{datetime.fromtimestamp(unix_s):%Y-%m-%d %H:%M:%S}"


def print_end(result: RunResult, *, said: Collection[str], stream: TextIO) -> None:
    """Prints how a run ended.

    Args:
      said: The notes that were printed during the run.
    """
    for note in result.notes:
        if note not in said and not note.startswith(DETAIL):
            output.show(f"note: {note}", stream=stream)
    if result.traceback:
        output.show(f"\n{result.traceback.rstrip()}\n", stream=stream)
    if result.error is not None and result.error.log_end:
        lines = "\n".join(f"  {line}" for line in result.error.log_end.splitlines())
        output.show(f"\nthe end of {result.error.task}'s log:\n{lines}\n", stream=stream)
    if result.error is not None:
        print_error(result.error, stream=stream)
    total_s = result.timings.get("total") or 0.0
    attempts = "" if result.attempts == 1 else f", {result.attempts} attempts"
    reached = how_far(result.state, result.steps)
    output.show(f"{reached}, {duration(total_s)}{attempts}", stream=stream)
    facts = {
        "metrics": metrics_line(result.metrics),
        "checkpoint": result.checkpoint,
        "storage": result.storage,
    }
    for name, value in facts.items():
        if value:
            output.show(f"  {name.ljust(10)}  {value}", stream=stream)
    third = "metrics" if result.exit_code == 0 else "resume"
    output.show(f"next: {_next_commands(result, 'status', 'logs', third)}", stream=stream)


def print_acceptance(result: RunResult, *, stream: TextIO) -> None:
    """Prints where a detached run is found from now on."""
    output.show(f"run {result.run} continues in the cluster, independently of this shell", stream=stream)
    output.show(f"  storage     {result.storage}", stream=stream)
    output.show(f"next: {_next_commands(result, 'status', 'logs -f', 'stop')}", stream=stream)


def _next_commands(result: RunResult, *commands: str) -> str:
    return "  ".join(command_for(result.storage, command) for command in commands)
