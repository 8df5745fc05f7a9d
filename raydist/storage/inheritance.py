"""Lets a run continue from the checkpoint of another run, which has other params."""

from __future__ import annotations

import dataclasses

from raydist.errors import CheckpointError
from raydist.storage.checkpoint_marker import STATE_FILE, Checkpoint, decode_state, encode_state
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.layout import RunLayout
from raydist.storage.run_record import RunRecordStore, read_record
from raydist.storage.run_storage import RunStorage, open_run


def split_checkpoint_uri(uri: str) -> tuple[str, str, str]:
    """Returns the storage, the run and the name of the checkpoint that has this URI.

    Raises:
      CheckpointError: It is not the URI of a checkpoint.
    """
    path, mark, query = uri.partition("?")
    folder, _, name = path.rstrip("/").rpartition("/")
    run_folder, _, checkpoints = folder.rpartition("/")
    storage, _, run = run_folder.rpartition("/")
    if not run or RunLayout(run=run).checkpoints != f"{run}/{checkpoints}":
        raise CheckpointError(
            f"{uri!r} is not a checkpoint of raydist; write one such as s3://runs/RUN/checkpoints/step-100-a0"
        )
    return f"{storage}{mark}{query}", run, name


def inherit(uri: str, *, run: RunStorage) -> Checkpoint:
    """Has `run`, which nobody drives, resume from a copy of the checkpoint that has this URI.

    Checkpoints that the run has itself count as older, also those of later steps. If the one that is asked
    for was pruned since, the newest one of its run is copied.

    Raises:
      CheckpointError: It is not a checkpoint, is damaged, or its run has none any more.
      StorageError: Storage cannot be read or written.
    """
    root, donor, name = split_checkpoint_uri(uri)
    source = open_run(root, run=donor)
    store = CheckpointStore(source)
    newest = store.newest()
    found = next((one for one in store.committed() if one.name == name), newest)
    if found is None:
        raise CheckpointError(f"run {donor} has no checkpoint, so {run.run} cannot continue from {uri}")
    files, ended = store.read(found), found.info.get("ended_fits", ())
    records = RunRecordStore(run)
    if records.exists():
        record = records.read()
    else:
        record = dataclasses.replace(read_record(source).as_cancelled(run), attempts=0)
    # What the run has reported itself is not of these weights, of which nothing may be left to train.
    records.replace(dataclasses.replace(record, metrics=found.info.get("metrics", {})))
    # Newest means the highest attempt, and the run's next one has this number.
    own, attempt = CheckpointStore(run), record.attempts
    for _, step, attempt_before in ended:
        end = store.find(step=step, attempt=attempt_before)
        own.commit(step=step, attempt=attempt, files=store.read(end), info=end.info)
    ends = {"ended_fits": [[number, step, attempt] for number, step, _ in ended]} if ended else {}
    state = {**decode_state(files[STATE_FILE]), **ends, "is_inherited": True}
    return own.commit(
        step=found.step,
        attempt=attempt,
        files={**files, STATE_FILE: encode_state(state)},
        info={**found.info, **ends, "inherited_from": found.uri},
    )
