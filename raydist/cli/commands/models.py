"""`raydist predict` and `raydist export`: what a run's exported model is used for."""

from __future__ import annotations

import click

from raydist.cli.job_options import address_option, chosen_names, count_option, names_in, reading_options
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output

_DATA_FORMATS = ("parquet", "csv", "tfrecord", "images")
_MODEL_FORMATS = ("saved_model", "onnx", "litert", "keras")
# Of what `export` prints.
_COLUMNS = ("format", "difference", "uri")


@click.command("predict", epilog="More: `raydist guide after-training`.")
@run_argument
@click.argument("data", metavar="DATA")
@click.option("-o", "--out", metavar="OUT", required=True, help="Folder for the predictions, or its URI.")
@count_option(
    "--workers",
    "Actors that hold the model; each takes a CPU, and a GPU or a share of one where Ray has some.",
    default=1,
)
@click.option(
    "--features",
    metavar="COLUMNS",
    help="Columns that make up the model's only input, with commas between; else each input is a column.",
)
@click.option(
    "--copy", metavar="COLUMNS", help="Columns to copy, with commas between; all but the inputs when omitted."
)
@click.option(
    "--format",
    "format_name",
    type=click.Choice(_DATA_FORMATS),
    metavar="|".join(_DATA_FORMATS),
    help="Format of the data; detected from the names of the files when omitted.",
)
@click.option(
    "--to",
    type=click.Choice(("parquet", "csv")),
    help="Format of the predictions; CSV for CSV, and Parquet for others, when omitted.",
)
@click.option(
    "--delimiter",
    metavar="CHARACTER",
    help="Between the columns of CSV data, such as ';'; a comma when omitted.",
)
@count_option("--batch-size", "Rows that the model gets at once.", metavar="ROWS")
@address_option()
@reading_options
def predict(
    run: str,
    data: str,
    out: str,
    workers: int,
    features: str | None,
    copy: str | None,
    format_name: str | None,
    to: str | None,
    delimiter: str | None,
    batch_size: int | None,
    address: str | None,
    storage: str,
    is_json: bool,
) -> None:
    """Predict with a run's exported model.

    DATA is a file or a folder of Parquet, CSV, TFRecord or images. OUT gets Parquet or CSV files:
    `prediction`, and the columns that are not inputs of the model. The same command again continues one that
    was killed.

    \b
    Example:
      raydist predict @latest s3://bucket/new -o s3://bucket/predicted --workers 4
    """
    from raydist.inference.predict import Prediction

    prediction = Prediction(
        run=open_named(storage, run),
        data=data,
        out=out,
        format=format_name,
        features=_names(features),
        copy=_names(copy),
        to=to,
        delimiter=None if delimiter is None else delimiter.replace("\\t", "\t"),
        workers=workers,
        batch_size=batch_size,
        address=address,
    )
    with output.stdout_kept_for_json(is_json):
        told = prediction.execute(lambda done, rows: output.show(f"{done} files, {rows} rows", is_error=True))
    if is_json:
        output.print_json({"run": prediction.run.run, "out": out, **told})
        return
    before = f", {told['rows_before']} of them before" if told["rows_before"] else ""
    output.show(f"{told['rows']} predictions in {told['parts']} files in {out}{before}")


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(names_in(text))


@click.command("export", epilog="More: `raydist guide after-training`.")
@run_argument
@click.option(
    "--to",
    "to",
    metavar="FORMATS",
    required=True,
    help=f"Formats with commas between: {', '.join(_MODEL_FORMATS)}.",
)
@click.option("-o", "--out", metavar="OUT", help="Folder, or its URI; RUN-exported here when omitted.")
@click.option(
    "--trust", "is_trusted", is_flag=True, help="Load a model with code of its own, such as a Lambda layer."
)
@reading_options
def export(run: str, to: str, out: str | None, is_trusted: bool, storage: str, is_json: bool) -> None:
    """Export a run's model in other formats.

    Each is loaded again, and its outputs for a batch are compared with those of the run's exported model. The
    SavedModel is OUT/1, OUT/2 and so on, as TensorFlow Serving wants it.

    \b
    Example:
      raydist export @latest --to saved_model,onnx -o models/cifar
    """
    from raydist.inference.exporting import export
    from raydist.storage.filesystem import Storage

    formats = chosen_names(to, _MODEL_FORMATS, option="--to")
    opened = open_named(storage, run)
    rows = export(opened, formats, Storage.open(out or f"{opened.run}-exported"), is_trusted=is_trusted)
    if is_json:
        output.print_json({"run": opened.run, "exported": rows})
        return
    output.print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
