"""`raydist list`: the runs that are kept on a storage."""

from __future__ import annotations

from typing import Any

import click

from raydist.cli.job_options import json_option, storage_option
from raydist.cli.screen import output, run_view
from raydist.spec.plain import as_plain

# What is printed of a run, as it is for one whose record is damaged.
_UNKNOWN: dict[str, Any] = {
    "run": None,
    "state": None,
    "strategy": None,
    "keras": None,
    "attempts": 0,
    "steps": 0,
    "storage": None,
    "error": None,
    "created_at_s": None,
}
_COLUMNS = ("run", "state", "strategy", "attempts", "steps", "created")


@click.command("list")
@storage_option
@json_option
def command(storage: str, is_json: bool) -> None:
    """List runs, the newest first."""
    from raydist.storage.filesystem import Storage
    from raydist.storage.run_record import DamagedRecord, list_runs

    opened = Storage.open(storage)
    records = list_runs(opened)
    shown = [{**_UNKNOWN, **as_plain(record)} for record in records]
    if is_json:
        output.print_json(
            {"storage": opened.uri(), "runs": [{key: run[key] for key in _UNKNOWN} for run in shown]}
        )
        return
    if not records:
        click.echo(f"no runs in {opened.uri()}")
        return
    for run in shown:
        run["created"] = run_view.local_time(run["created_at_s"])
    output.print_table(_COLUMNS, [[run[name] for name in _COLUMNS] for run in shown])
    for record in records:
        if isinstance(record, DamagedRecord):
            click.echo(record.error.message)
