"""`raydist status RUN`: how far a run is, read from storage alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from raydist.cli.job_options import json_option, storage_option
from raydist.cli.run_argument import open_named, run_argument, wait_option
from raydist.cli.screen import output, run_view
from raydist.cli.screen.progress import PlainView
from raydist.cli.screen.run_view import Incident, incidents_of
from raydist.errors import StorageError
from raydist.spec.plain import as_plain
from raydist.spec.text import escaped

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_storage import RunStorage

# Of run.json, what `submit --json` does not print either.
_NOT_SHOWN = ("failures", "spec", "plan", "updated_at_s")
_POLL_S = 1.0


@click.command("status", epilog="More: `raydist guide commands`.")
@run_argument
@click.option("-w", "--watch", is_flag=True, help="Update the view until the run has ended.")
@wait_option
@storage_option
@json_option
def command(run: str, watch: bool, wait_s: float, storage: str, is_json: bool) -> None:
    """Show the progress of a run.

    Works from any shell, during the run and after Ray is gone.
    """
    from raydist.storage.run_record import read_record

    if watch and is_json:
        raise click.UsageError("--watch and --json do not go together: JSON is one object, printed at once")
    opened = open_named(storage, run, wait_s=wait_s if watch else 0.0)
    record = read_record(opened)
    if watch and not record.state.is_terminal:
        record = _watch(opened)
    incidents, problem = read_incidents(opened)
    if is_json:
        told = {key: value for key, value in as_plain(record).items() if key not in _NOT_SHOWN}
        facts = {"job": run_view.job_text(record), "params": record.spec.get("params", {})}
        times = {"duration_s": run_view.duration_s(record), "is_driven": is_driven(opened, record)}
        output.print_json({**told, **facts, **times, "restarts": as_plain(incidents)})
        return
    for line in _lines(opened, record, incidents):
        output.show(line, is_alarming=run_view.is_alarming(line))
    if problem is not None:
        output.show(f"restarts are unknown: {problem}")


def read_incidents(storage: RunStorage) -> tuple[Sequence[Incident], str | None]:
    """Returns what interrupted a run, and why that cannot be read; None where it can."""
    from raydist.storage.segments import read_events

    try:
        return incidents_of(read_events(storage)), None
    except StorageError as error:
        return (), str(error)


def is_driven(storage: RunStorage, record: RunRecord) -> bool | None:
    """Returns whether some process drives the run; None where its claim cannot be read."""
    from raydist.storage.claims import ClaimStore

    if record.state.is_terminal:
        return False
    try:
        return ClaimStore(storage).is_driven(record, now_s=time.time())
    except StorageError:
        return None


def _lines(storage: RunStorage, record: RunRecord, incidents: Sequence[Incident]) -> list[str]:
    lines = run_view.record_lines(record, incidents)
    if (age := run_view.age_line(record)) is not None:
        lines += ["", age]
        if is_driven(storage, record) is False:
            lines.append(f"no process drives it any more; `raydist resume {record.run}` continues it")
    return lines


def _watch(storage: RunStorage) -> RunRecord:
    """Shows the run until it has ended, or nobody drives it any more, and returns its last record."""
    from raydist.storage.run_record import read_record

    if not sys.stdout.isatty():
        view = PlainView(sys.stdout)
        while not _is_over(storage, record := read_record(storage)):
            view.show(run_view.progress_of(record))
            time.sleep(_POLL_S)
        return record
    import rich.console
    import rich.live
    import rich.text

    with rich.live.Live(console=rich.console.Console(), auto_refresh=False, transient=True) as live:
        while not _is_over(storage, record := read_record(storage)):
            lines = _lines(storage, record, read_incidents(storage)[0])
            shown = [
                rich.text.Text(escaped(line), style="red" if run_view.is_alarming(line) else "")
                for line in lines
            ]
            live.update(rich.text.Text("\n").join(shown), refresh=True)
            time.sleep(_POLL_S)
    return record


def _is_over(storage: RunStorage, record: RunRecord) -> bool:
    return record.state.is_terminal or is_driven(storage, record) is False
