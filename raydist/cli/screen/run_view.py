"""How a run's record is shown to a person, and what every command that reads one asks first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TextIO

import click

from raydist.cli.screen import guide_pages, output
from raydist.cli.screen.progress import duration, metrics_line
from raydist.spec.job import check_run_name

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


def check_name(run: str) -> None:
    """Raises SpecError for what cannot be a run's name, before storage is asked for it."""
    check_run_name(run)


def how_far(state: str, steps: int) -> str:
    """Returns `SUCCEEDED after 30 steps`; steps of a loop that does not report are unknown."""
    return f"{state} after {steps} steps" if steps else f"{state}, no steps reported"


def print_record(record: Mapping[str, Any]) -> None:
    """Prints run.json as a person reads it: the facts, the tasks, the error."""
    facts = {
        "run": record["run"],
        "state": record["state"],
        "strategy": f"{record['strategy'] or '-'} (keras {record['keras'] or '-'})",
        "attempts": record["attempts"],
        "steps": record["steps"],
        "metrics": metrics_line(known_metrics(record)) or "-",
        "checkpoint": record["checkpoint"] or "-",
        "storage": record["storage"],
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        click.echo(f"{name.ljust(width)}  {value}")
    for note in record["notes"]:
        click.echo(f"note: {note}")
    if record["tasks"]:
        columns = ("task", "state", "steps", "host", "pid", "address")
        click.echo()
        output.print_table(columns, [[task.get(name) for name in columns] for task in record["tasks"]])
    if record["error"]:
        click.echo()
        print_stored_error(record["error"])


def print_stored_error(error: Mapping[str, Any], *, stream: TextIO | None = None) -> None:
    """Prints a record's `error`, to stdout when `stream` is omitted: the sentence, then where."""
    # The message of a failed task names the exception's type already.
    named = "" if error["type"] in error["message"] else f"{error['type']}: "
    click.echo(f"error: {named}{error['message']}", file=stream)
    for place in ("task", "attempt", "log"):
        if error.get(place) is not None:
            click.echo(f"  {place.ljust(7)}  {error[place]}", file=stream)
    if (page := guide_pages.command_about(error["type"], error.get("exit_code"))) is not None:
        click.echo(f"  see      {page}", file=stream)


def print_age(record: Mapping[str, Any]) -> None:
    """Tells how old the record of a run that goes on is: a dead driver cannot write its own end."""
    if record["state"] in ENDED or record["updated_at_s"] is None:
        return
    click.echo(f"\nas of {duration(max(0.0, time.time() - record['updated_at_s']))} ago")


def known_metrics(record: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics that are numbers: JSON has null for NaN."""
    return {
        name: float("nan") if value is None else float(value)
        for name, value in (record["metrics"] or {}).items()
    }


def local_time(unix_s: float | None) -> str:
    """Returns `2026-11-21 09:30:12` in this machine's time zone."""
    return "-" if unix_s is None else f"{datetime.fromtimestamp(unix_s):%Y-%m-%d %H:%M:%S}"
