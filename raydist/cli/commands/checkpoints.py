"""`raydist checkpoints RUN`: the committed checkpoints of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from raydist.cli.job_options import json_option, storage_option
from raydist.cli.run_argument import note_damage, open_named, run_argument
from raydist.cli.screen import output
from raydist.errors import CheckpointError

if TYPE_CHECKING:
    from raydist.storage.checkpoint_marker import Checkpoint
    from raydist.storage.checkpoints import CheckpointStore

_COLUMNS = ("step", "attempt", "epoch", "bytes", "digest", "state", "uri")


@click.command("checkpoints", epilog="More: `raydist guide storage`.")
@run_argument
@click.option("--verify", is_flag=True, help="Read every file and compare it with its checksum.")
@storage_option
@json_option
def command(run: str, verify: bool, storage: str, is_json: bool) -> None:
    """List the committed checkpoints of a run, the newest first."""
    from raydist.storage.checkpoints import CheckpointStore

    opened = open_named(storage, run)
    note_damage(opened)
    store = CheckpointStore(opened)
    rows = [_describe(store, checkpoint, verify=verify) for checkpoint in store.committed()]
    if is_json:
        output.print_json({"run": opened.run, "checkpoints": rows})
    elif rows:
        output.print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows])
    else:
        output.show(f"no committed checkpoints in {opened.uri(opened.checkpoints)}")


def _describe(store: CheckpointStore, checkpoint: Checkpoint, *, verify: bool) -> dict[str, Any]:
    return {
        "step": checkpoint.step,
        "attempt": checkpoint.attempt,
        "epoch": checkpoint.info.get("epoch"),
        "bytes": sum(file.size_bytes for file in checkpoint.files),
        "digest": checkpoint.info.get("digest"),
        "state": _verified(store, checkpoint) if verify else "committed",
        "metrics": checkpoint.info.get("metrics"),
        "uri": checkpoint.uri,
    }


def _verified(store: CheckpointStore, checkpoint: Checkpoint) -> str:
    try:
        store.verify(checkpoint)
    except CheckpointError as error:
        return f"damaged: {error}"
    return "whole"
