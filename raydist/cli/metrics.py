"""`raydist metrics RUN`: the curve of a run, over all its attempts."""

from __future__ import annotations

import csv
import sys
from typing import TYPE_CHECKING

import click

from raydist.cli import output, run_view
from raydist.cli.job_options import json_option, storage_option

if TYPE_CHECKING:
    from raydist.metrics.merge import MetricTable


@click.command("metrics")
@click.argument("run", metavar="RUN")
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", help="How to print it."
)
@click.option(
    "--local", is_flag=True, help="Each task's own running values, not those of all replicas together."
)
@storage_option
@json_option
def command(run: str, form: str, local: bool, storage: str, is_json: bool) -> None:
    """Print the metrics of a run, a line per step."""
    from raydist.metrics.merge import as_table
    from raydist.metrics.parquet import read_metrics
    from raydist.metrics.records import Scope
    from raydist.storage.filesystem import Storage
    from raydist.storage.layout import RunLayout
    from raydist.storage.run_record import read_record

    run_view.check_name(run)
    opened = Storage.open(storage)
    read_record(opened, run)  # tells a run that does not exist from one without metrics
    rows = read_metrics(opened, RunLayout(run=run))
    table = as_table(rows, scope=Scope.LOCAL if local else Scope.GLOBAL)
    if is_json or form == "json":
        lines = [dict(zip(table.columns, line, strict=True)) for line in table.lines]
        output.print_json({"run": run, "metrics": lines})
    elif form == "csv":
        _print_csv(table)
    elif table.lines:
        output.print_table(table.columns, table.lines)
    else:
        click.echo(f"no metrics of {run} are stored yet")


def _print_csv(table: MetricTable) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.lines)
