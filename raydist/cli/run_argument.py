"""RUN: how a command takes the run that it is about, and how a shell completes its name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from raydist.cli.job_options import DurationType, default_storage
from raydist.cli.screen import output
from raydist.errors import MistakeError, RaydistError, StorageError

if TYPE_CHECKING:
    from raydist.storage.checkpoint_marker import Checkpoint
    from raydist.storage.run_storage import RunStorage

# More names than anybody reads.
_MAX_COMPLETED = 200
_POLL_S = 0.2


def complete_run(
    context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Returns the runs of the command's `--storage` that begin like that, the newest first."""
    from raydist.storage.filesystem import Storage
    from raydist.storage.run_names import LATEST, names_by_age

    try:
        storage = Storage.open(context.params.get("storage") or default_storage()).hasty()
        names = [LATEST, *names_by_age(storage)]
    except RaydistError:  # a shell that completes has no place for a message
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MAX_COMPLETED]


run_argument = click.argument("run", metavar="RUN", shell_complete=complete_run)

# For a command that may be given right after `submit`, before its run is there.
wait_option = click.option(
    "--wait",
    "wait_s",
    metavar="DURATION",
    type=DurationType(),
    default="10s",
    show_default=True,
    help="How long to wait for a run that does not exist yet: seconds, or 90s, 5m, 2h.",
)


def open_named(storage: str, run: str, *, wait_s: float = 0.0) -> RunStorage:
    """Opens the run that is meant: by its name, by a prefix that no other run has, or by `@latest`.

    Args:
      wait_s: How long to wait for a run that does not exist yet.

    Raises:
      MistakeError: There is no such run, or several begin like that.
      StorageError: Storage cannot be read.
    """
    from raydist.storage.filesystem import Storage
    from raydist.storage.run_names import find_run, find_run_yet, no_such_run

    opened, deadline_s = Storage.open(storage), time.monotonic() + wait_s
    if wait_s and find_run_yet(opened, run) is None:
        output.show(f"{no_such_run(opened, run)}; waiting up to {wait_s:g} s for it", is_error=True)
        while time.monotonic() < deadline_s and find_run_yet(opened, run) is None:
            time.sleep(_POLL_S)
    return find_run(opened, run)


def checkpoint_of(run: RunStorage, step: int) -> Checkpoint:
    """Returns the run's checkpoint of a step; raises MistakeError if there is none."""
    from raydist.storage.checkpoints import CheckpointStore

    committed = CheckpointStore(run).committed()
    found = next((one for one in committed if one.step == step), None)
    if found is None:
        known = ", ".join(str(one.step) for one in committed) or "none"
        raise MistakeError(f"run {run.run} has no checkpoint of step {step}; it has {known}")
    return found


def note_damage(storage: RunStorage) -> None:
    """Tells on stderr of a run.json that is damaged, for a command that shows what is stored beside it."""
    from raydist.storage.run_record import read_record

    try:
        read_record(storage)
    except StorageError as error:
        output.show(f"note: {error}", is_error=True)
