"""`raydist delete RUN…`: removes runs that have ended from their storage."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from raydist.cli.job_options import DurationType, reading_options
from raydist.cli.run_argument import complete_run, open_named
from raydist.cli.screen import output, run_view
from raydist.errors import MistakeError, StorageError
from raydist.spec.quantities import parse_age, size_text
from raydist.spec.text import counted

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_removal import Usage
    from raydist.storage.run_storage import RunStorage

_COLUMNS = ("run", "state", "written", "files", "size")


@dataclass(frozen=True, kw_only=True)
class _Chosen:
    """A run that is to be deleted; `record` is None where it is damaged."""

    storage: RunStorage
    record: RunRecord | None
    usage: Usage


@click.command("delete", epilog="More: `raydist guide storage`.")
@click.argument("runs", metavar="[RUN…]", nargs=-1, shell_complete=complete_run)
@click.option(
    "--older-than",
    "older_than_s",
    metavar="AGE",
    type=DurationType(parse_age),
    help="Delete all runs last written longer ago than this, such as 12h or 30d.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@reading_options
def command(
    runs: tuple[str, ...], older_than_s: float | None, yes: bool, storage: str, is_json: bool
) -> None:
    """Delete runs with all their files, after asking.

    Says what is deleted and how much it frees. A live run is refused.

    \b
    Example:
      raydist delete cifar-20261121 mnist-old
      raydist delete --older-than 30d
    """
    from raydist.storage.run_removal import remove_run

    if bool(runs) == (older_than_s is not None):
        raise click.UsageError("Name runs, or give --older-than AGE.")
    kept: list[dict[str, str]] = []
    chosen = _named(storage, runs) if older_than_s is None else _older(storage, older_than_s, kept)
    num_bytes = sum(one.usage.num_bytes for one in chosen)
    if not is_json:
        _show(chosen, kept)
    if chosen and not yes:
        _ask(chosen, num_bytes, is_json=is_json)
    for one in chosen:
        remove_run(one.storage, one.record)
    if is_json:
        output.print_json({"deleted": [_told(one) for one in chosen], "kept": kept, "bytes": num_bytes})
    elif chosen:
        output.show(f"deleted {_count(chosen)}, {size_text(num_bytes)} freed")
    else:
        output.show("nothing to delete")


def _named(uri: str, runs: tuple[str, ...]) -> list[_Chosen]:
    """Returns the runs of these names, each once; refuses all if one is active."""
    from raydist.storage.run_record import read_record
    from raydist.storage.run_removal import check_is_over

    opened = {found.run: found for found in (open_named(uri, run) for run in runs)}
    chosen = []
    for storage in opened.values():
        try:
            record = read_record(storage)
        except StorageError:  # damaged, which may be why it is deleted
            record = None
        check_is_over(storage, record)
        chosen.append(_choose(storage, record))
    return chosen


def _older(uri: str, age_s: float, kept: list[dict[str, str]]) -> list[_Chosen]:
    """Returns the runs that were written last so long ago; adds to `kept` those of which that is unknown."""
    from raydist.storage.filesystem import Storage
    from raydist.storage.run_removal import expired_runs

    expired = expired_runs(Storage.open(uri), before_s=time.time() - age_s)
    kept += [{"run": run, "reason": reason} for run, reason in expired.kept.items()]
    chosen = []
    for opened, record in expired.runs:
        try:
            chosen.append(_choose(opened, record))
        except StorageError as error:
            kept.append({"run": opened.run, "reason": str(error)})
    return chosen


def _choose(storage: RunStorage, record: RunRecord | None) -> _Chosen:
    from raydist.storage.run_removal import total, usage_of

    return _Chosen(storage=storage, record=record, usage=total(usage_of(storage)))


def _ask(chosen: list[_Chosen], num_bytes: int, *, is_json: bool) -> None:
    if is_json or not sys.stdin.isatty():
        raise MistakeError(f"{_count(chosen)} would be deleted; nobody can be asked here: give --yes")
    click.confirm(f"Delete {_count(chosen)} and free {size_text(num_bytes)}?", abort=True)


def _count(chosen: list[_Chosen]) -> str:
    return counted(len(chosen), "run")


def _show(chosen: list[_Chosen], kept: list[dict[str, str]]) -> None:
    for one in kept:
        output.show(f"kept {one['run']}: {one['reason']}")
    if chosen:
        output.print_table(_COLUMNS, [_row(one) for one in chosen])


def _row(one: _Chosen) -> list[object]:
    told, written_s = _told(one), None if one.record is None else one.record.updated_at_s
    written = run_view.local_time(written_s)
    return [told["run"], told["state"], written, told["num_files"], size_text(told["bytes"])]


def _told(one: _Chosen) -> dict[str, Any]:
    state = "damaged" if one.record is None else one.record.state.value
    usage = {"num_files": one.usage.num_files, "bytes": one.usage.num_bytes}
    return {"run": one.storage.run, "state": state, **usage}
