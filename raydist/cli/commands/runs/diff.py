"""`raydist diff RUN RUN`: what differs between two runs."""

from __future__ import annotations

import json

import click

from raydist.cli.job_options import json_option, storage_option
from raydist.cli.run_argument import complete_run, open_named
from raydist.cli.screen import output
from raydist.cli.screen.run_diff import compare


@click.command("diff", epilog="More: `raydist guide reproducing`.")
@click.argument("left", metavar="RUN", shell_complete=complete_run)
@click.argument("right", metavar="RUN", shell_complete=complete_run)
@click.option("--all", "is_all", is_flag=True, help="Show what is equal too.")
@storage_option
@json_option
def command(left: str, right: str, is_all: bool, storage: str, is_json: bool) -> None:
    """Show what differs between two runs.

    That is the job, params, options, the plan, versions, code, hosts and the results.
    """
    from raydist.storage.run_record import read_record

    records = [read_record(open_named(storage, run)) for run in (left, right)]
    found = [one for one in compare(*records) if is_all or not one.is_equal]
    names = [record.run for record in records]
    if is_json:
        differences = [
            {"section": one.section, "name": one.name, "left": one.left, "right": one.right} for one in found
        ]
        output.print_json({"runs": names, "differences": differences})
    elif found:
        rows = [[one.section, one.name, _text(one.left), _text(one.right)] for one in found]
        output.print_table(("section", "name", *names), rows)
    else:
        output.show(f"runs {names[0]} and {names[1]} do not differ")


def _text(value: object) -> object:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else value
