"""`raydist download RUN output|checkpoint|export|code|page [DIR]`: copies parts of a run to this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from raydist import __version__
from raydist.cli.job_options import reading_options
from raydist.cli.run_argument import checkpoint_of, note_damage, open_named, run_argument
from raydist.cli.screen import output
from raydist.errors import CheckpointError, MistakeError
from raydist.page.html import report_html
from raydist.runtime.task.code_archive import unpack
from raydist.spec.quantities import size_text
from raydist.storage.provenance import read_kept_code

if TYPE_CHECKING:
    from raydist.storage.checkpoint_marker import Checkpoint
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_storage import RunStorage

_KINDS = ("output", "checkpoint", "export", "code", "page")
# What is said where a folder of a run is empty.
_MISSING = {
    "output": "no output; a job writes it into ctx.output_dir, or into its working folder",
    "export": "no exported model; ctx.fit exports it at its end, unless --no-export is given",
}


@click.command("download", epilog="More: `raydist guide storage`.")
@run_argument
@click.argument("what", metavar="|".join(_KINDS), type=click.Choice(_KINDS))
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--step", metavar="N", type=int, help="The checkpoint of this step; the newest whole one when omitted."
)
@reading_options
def command(
    run: str, what: str, directory: Path | None, step: int | None, storage: str, is_json: bool
) -> None:
    """Copy the output, a checkpoint, the export, the code or the page of a run.

    DIR must not exist, or be empty; without it the folder RUN-output is made here, or RUN-export and so on. A
    checkpoint is compared with its checksums on the way.

    The page is one HTML file, DIR or RUN.html, with curves, timeline, failures, params and notes. It opens in
    a browser without network.

    \b
    Example:
      raydist download @latest export model/
      raydist download @latest page run.html
    """
    from raydist.storage.run_record import read_record

    opened = open_named(storage, run)
    if step is not None and what != "checkpoint":
        raise MistakeError(f"--step names a checkpoint; a run has one {what}")
    if what == "page":
        _write_page(opened, directory or Path(f"{opened.run}.html"), is_json=is_json)
        return
    directory = directory or Path(f"{opened.run}-{what}")
    check_is_empty(directory)
    if what != "code":
        note_damage(opened)
    notes: list[str] = []
    if what == "code":
        copied = _copy_code(opened, read_record(opened), directory)
    elif what == "checkpoint":
        copied, notes = _copy_checkpoint(opened, directory, step=step)
    else:
        copied = _copy_folder(opened, what, directory)
    told = {"run": opened.run, "what": what, "directory": str(directory.resolve()), **copied, "notes": notes}
    if is_json:
        output.print_json(told)
        return
    for note in notes:
        output.show(f"note: {note}")
    of_step = f" of step {copied['step']}" if copied.get("step") is not None else ""
    output.show(
        f"{what}{of_step} of run {opened.run}: {copied['num_files']} files, {size_text(copied['bytes'])}, "
        f"in {directory}"
    )


def _write_page(opened: RunStorage, target: Path, *, is_json: bool) -> None:
    from raydist.page.gathering import Problems, gather_curves, gather_facts

    problems = Problems()
    facts = gather_facts(opened, problems, now_s=time.time())
    curves = gather_curves(opened, problems, facts["record"])
    facts |= {"raydist": __version__, "problems": problems.sentences}
    page = report_html(facts, curves)
    output.write_file(target, page, option="DIR")
    told = {"run": opened.run, "what": "page", "file": str(target.absolute()), "bytes": len(page.encode())}
    if is_json:
        output.print_json({**told, "problems": problems.sentences})
        return
    output.show(f"{target}  {len(page.encode()) / 1e6:.1f} MB")
    for sentence in problems.sentences:
        output.show(f"left out: {sentence}", is_error=True)


def check_is_empty(directory: Path) -> None:
    """Raises MistakeError unless the folder is empty or does not exist."""
    try:
        is_free = not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))
    except OSError as error:
        raise MistakeError(f"cannot look into {directory}: {error.strerror}") from error
    if not is_free:
        raise MistakeError(f"{directory} is not an empty folder; name one that is, or that does not exist")


def _copy_checkpoint(
    storage: RunStorage, directory: Path, *, step: int | None
) -> tuple[dict[str, int], list[str]]:
    from raydist.storage.checkpoints import CheckpointStore

    store = CheckpointStore(storage)
    if step is not None:
        checkpoint = checkpoint_of(storage, step)
        store.fetch(checkpoint, directory)
        return _told(checkpoint), []
    point = store.latest_whole(fetch_to=directory)
    notes = [f"{one.uri} is damaged, and was passed over: {one.reason}" for one in point.damaged]
    if point.checkpoint is None:
        if notes:
            raise CheckpointError(f"no checkpoint of run {storage.run} is whole: {notes[0]}")
        raise MistakeError(f"run {storage.run} has no committed checkpoint")
    return _told(point.checkpoint), notes


def _told(checkpoint: Checkpoint) -> dict[str, int]:
    facts, num_files = checkpoint.facts(), len(checkpoint.files)
    return {**{name: facts[name] for name in ("step", "attempt", "bytes")}, "num_files": num_files}


def _copy_code(storage: RunStorage, record: RunRecord, directory: Path) -> dict[str, int]:
    unpack(read_kept_code(storage, record.code), directory)
    sizes = [file.stat().st_size for file in directory.rglob("*") if file.is_file()]
    return {"num_files": len(sizes), "bytes": sum(sizes)}


def _copy_folder(storage: RunStorage, what: str, directory: Path) -> dict[str, int]:
    files = storage.download_folder({"output": storage.output, "export": storage.export}[what], directory)
    if not files:
        raise MistakeError(f"run {storage.run} has {_MISSING[what]}")
    return {"num_files": len(files), "bytes": sum(file.size_bytes for file in files)}
