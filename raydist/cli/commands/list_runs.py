"""`raydist list`: the runs that are kept on a storage."""

from __future__ import annotations

import click

from raydist.cli.job_options import json_option, storage_option
from raydist.cli.screen import output, run_view

_COLUMNS = ("run", "state", "strategy", "attempts", "steps", "created")


@click.command("list")
@storage_option
@json_option
def command(storage: str, is_json: bool) -> None:
    """List runs, the newest first."""
    from raydist.storage.filesystem import Storage
    from raydist.storage.record.run_record import list_runs

    opened = Storage.open(storage)
    records = list_runs(opened)
    if is_json:
        kept = ("run", "state", "strategy", "keras", "attempts", "steps", "storage", "error", "created_at_s")
        runs = [{key: record[key] for key in kept} for record in records]
        output.print_json({"storage": opened.uri(), "runs": runs})
        return
    if not records:
        click.echo(f"no runs in {opened.uri()}")
        return
    shown = [{**record, "created": run_view.local_time(record["created_at_s"])} for record in records]
    output.print_table(_COLUMNS, [[record[name] for name in _COLUMNS] for record in shown])
    for record in records:
        if record["state"] is None:
            click.echo(record["error"]["message"])
