"""`raydist report RUN`: the run as one HTML file, read from storage alone."""

from __future__ import annotations

import time
from pathlib import Path

import click

from raydist import __version__
from raydist.cli.job_options import json_option, storage_option
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output
from raydist.errors import MistakeError
from raydist.page.html import report_html


@click.command("report", epilog="More: `raydist guide page`.")
@run_argument
@click.option(
    "-o",
    "--output",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write it; RUN.html in the current folder when omitted.",
)
@storage_option
@json_option
def command(run: str, path: Path | None, storage: str, is_json: bool) -> None:
    """Write a run's page as one HTML file.

    It holds curves, timeline, failures, params and notes, and opens in a browser without network.
    """
    from raydist.page.gathering import Problems, gather_curves, gather_facts

    opened = open_named(storage, run)
    problems = Problems()
    facts = gather_facts(opened, problems, now_s=time.time())
    curves = gather_curves(opened, problems)
    facts |= {"raydist": __version__, "problems": problems.sentences}
    target = path or Path(f"{opened.run}.html")
    size_bytes = _write(target, report_html(facts, curves))
    if is_json:
        output.print_json(
            {
                "run": opened.run,
                "file": str(target.absolute()),
                "bytes": size_bytes,
                "problems": problems.sentences,
            }
        )
        return
    output.show(f"{target}  {size_bytes / 1e6:.1f} MB")
    for sentence in problems.sentences:
        output.show(f"left out: {sentence}", is_error=True)


def _write(target: Path, page: str) -> int:
    content = page.encode()
    try:
        target.write_bytes(content)
    except OSError as error:
        raise MistakeError(
            f"{target} cannot be written: {error.strerror or error}; choose another with -o"
        ) from error
    return len(content)
