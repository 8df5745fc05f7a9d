"""How a run's record is shown to a person, and what every command that reads one asks first."""

from __future__ import annotations

import shlex
import time
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

import click

from raydist.cli.screen import guide_pages, output
from raydist.cli.screen.progress import duration, metrics_line
from raydist.spec.job import check_run_name
from raydist.spec.plain import as_plain
from raydist.spec.result import RunError
from raydist.spec.run_state import RunState

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord


def check_name(run: str) -> None:
    """Raises SpecError for what cannot be a run's name, before storage is asked for it."""
    check_run_name(run)


def how_far(state: RunState, steps: int) -> str:
    """Returns `SUCCEEDED after 30 steps`; steps of a loop that does not report are unknown."""
    return f"{state.value} after {steps} steps" if steps else f"{state.value}, no steps reported"


def print_record(record: RunRecord) -> None:
    """Prints run.json as a person reads it: the facts, the tasks, the error."""
    facts: dict[str, object] = {"run": record.run}
    if args := record.spec.get("args"):
        facts["args"] = shlex.join(args)
    facts |= {
        "state": record.state.value,
        "strategy": f"{record.strategy or '-'} (keras {record.keras or '-'})",
        "attempts": record.attempts,
        "steps": record.steps,
        "metrics": metrics_line(record.metrics) or "-",
        "checkpoint": record.checkpoint or "-",
        "storage": record.storage,
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name.ljust(width)}  {value}")
    for note in record.notes:
        click.echo(f"note: {note}")
    if record.tasks:
        columns = ("task", "state", "steps", "host", "pid", "address")
        click.echo()
        output.print_table(columns, [[as_plain(task)[name] for name in columns] for task in record.tasks])
    if record.error:
        click.echo()
        print_error(record.error)


def print_error(error: RunError, *, stream: TextIO | None = None) -> None:
    """Prints why a run failed, to stdout when `stream` is omitted: the sentence, then where."""
    # The message of a failed task names the exception's type already.
    named = "" if error.type in error.message else f"{error.type}: "
    click.echo(f"error: {named}{error.message}", file=stream)
    for name, place in (("task", error.task), ("attempt", error.attempt), ("log", error.log)):
        if place is not None:
            click.echo(f"  {name.ljust(7)}  {place}", file=stream)
    if (page := guide_pages.command_about(error.type, error.exit_code)) is not None:
        click.echo(f"  see      {page}", file=stream)


def print_age(record: RunRecord) -> None:
    """Tells how old the record of a run that goes on is: a dead driver cannot write its own end."""
    if record.state.is_terminal or record.updated_at_s is None:
        return
    click.echo(f"\nas of {duration(max(0.0, time.time() - record.updated_at_s))} ago")


def local_time(unix_s: float | None) -> str:
    """Returns `2026-11-21 09:30:12` in this machine's time zone."""
    return "-" if unix_s is None else f"{datetime.fromtimestamp(unix_s):%Y-%m-%d %H:%M:%S}"
