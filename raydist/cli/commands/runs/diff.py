"""`raydist diff RUN RUN`: what differs between two runs."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from raydist.cli.job_options import json_option, storage_option
from raydist.cli.run_argument import complete_run, open_named
from raydist.cli.screen import output
from raydist.cli.screen.code_diff import FileDifference, compare_code, diff_lines
from raydist.cli.screen.run_diff import compare
from raydist.errors import MistakeError, StorageError
from raydist.spec.plain import as_plain
from raydist.storage.evidence import read_kept_code

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_storage import RunStorage


@click.command("diff", epilog="More: `raydist guide reproducing`.")
@click.argument("left", metavar="RUN", shell_complete=complete_run)
@click.argument("right", metavar="RUN", shell_complete=complete_run)
@click.option("--all", "is_all", is_flag=True, help="Show what is equal too.")
@storage_option
@json_option
def command(left: str, right: str, is_all: bool, storage: str, is_json: bool) -> None:
    """Show what differs between two runs.

    That is the job, params, options, the plan, versions, code, hosts and the results, and the text of the
    files of the code that differ.
    """
    from raydist.storage.run_record import read_record

    opened = [open_named(storage, run) for run in (left, right)]
    records = [read_record(one) for one in opened]
    found = [one for one in compare(*records) if is_all or not one.is_equal]
    names = [record.run for record in records]
    files, note = _files(opened, records)
    if is_json:
        differences = [
            {"section": one.section, "name": one.name, "left": one.left, "right": one.right} for one in found
        ]
        output.print_json({"runs": names, "differences": differences, "files": as_plain(files), "note": note})
    elif found:
        rows = [[one.section, one.name, _text(one.left), _text(one.right)] for one in found]
        output.print_table(("section", "name", *names), rows)
        for line in [*diff_lines(files), *([] if note is None else [f"note: {note}"])]:
            output.show(f"\n{line}")
    else:
        output.show(f"runs {names[0]} and {names[1]} do not differ")


def _files(
    opened: Sequence[RunStorage], records: Sequence[RunRecord]
) -> tuple[list[FileDifference], str | None]:
    """Returns the files of the code that differ, and what cannot be said of them."""
    left, right = (record.code for record in records)
    if left is None or right is None or left.digest == right.digest:
        return [], None
    try:
        kept = [read_kept_code(*pair) for pair in zip(opened, (left, right), strict=True)]
        files = compare_code(kept[0], kept[1], runs=(records[0].run, records[1].run))
    except (MistakeError, StorageError, zipfile.BadZipFile) as error:
        return [], f"only digests of the code can be compared: {error}"
    omitted = sorted({*left.omitted, *right.omitted})
    if not files and omitted:
        return [], f"the code differs in files that are not kept: {', '.join(omitted)}"
    return files, None


def _text(value: object) -> object:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else value
