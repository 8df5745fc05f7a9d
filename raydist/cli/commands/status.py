"""`raydist status RUN`: how far a run is, read from storage alone."""

from __future__ import annotations

import click

from raydist.cli.job_options import json_option, storage_option
from raydist.cli.screen import output, run_view
from raydist.spec.plain import as_plain

# Of run.json, what `submit --json` does not print either.
_NOT_SHOWN = ("failures", "spec", "plan", "created_at_s", "updated_at_s")


@click.command("status")
@click.argument("run", metavar="RUN")
@storage_option
@json_option
def command(run: str, storage: str, is_json: bool) -> None:
    """Show how far a run is.

    Works from any shell, while the run goes on and after Ray is gone.
    """
    from raydist.storage.run_record import read_record
    from raydist.storage.run_storage import open_run

    run_view.check_name(run)
    record = read_record(open_run(storage, run=run))
    if is_json:
        output.print_json({key: value for key, value in as_plain(record).items() if key not in _NOT_SHOWN})
        return
    run_view.print_record(record)
    run_view.print_age(record)
