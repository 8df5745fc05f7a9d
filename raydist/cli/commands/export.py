"""`raydist export RUN --to FORMATS`: a run's model in other formats."""

from __future__ import annotations

import click

from raydist.cli.job_options import chosen_names, json_option, storage_option
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output

_FORMATS = ("saved_model", "onnx", "litert", "keras")
_COLUMNS = ("format", "difference", "uri")


@click.command("export", epilog="More: `raydist guide after-training`.")
@run_argument
@click.option(
    "--to",
    "to",
    metavar="FORMATS",
    required=True,
    help=f"Formats with commas between: {', '.join(_FORMATS)}.",
)
@click.option("-o", "--out", metavar="OUT", help="Folder, or its URI; RUN-exported here when omitted.")
@storage_option
@json_option
def command(run: str, to: str, out: str | None, storage: str, is_json: bool) -> None:
    """Export a run's model in other formats.

    Each is loaded again, and its outputs for a batch are compared with those of the run's exported model. The
    SavedModel is OUT/1, OUT/2 and so on, as TensorFlow Serving wants it.

    \b
    Example:
      raydist export @latest --to saved_model,onnx -o models/cifar
    """
    from raydist.inference.exporting import export
    from raydist.storage.filesystem import Storage

    formats = chosen_names(to, _FORMATS, option="--to")
    opened = open_named(storage, run)
    rows = export(opened, formats, Storage.open(out or f"{opened.run}-exported"))
    if is_json:
        output.print_json({"run": opened.run, "exported": rows})
        return
    output.print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
