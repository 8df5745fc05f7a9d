"""--keep-runs: deletes old runs of a storage, once a run that asks for it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from raydist.errors import MistakeError, StorageError
from raydist.spec.job import JobSpec
from raydist.spec.quantities import write_age
from raydist.spec.text import counted
from raydist.storage.filesystem import Storage
from raydist.storage.run_removal import expired_runs, remove_run

# An object store takes a while for each run. What is left is deleted by the next run.
_TIMEOUT_S = 60.0
_MAX_NAMED = 5


def expiry_hook(job: JobSpec) -> Callable[[], str | None] | None:
    """Returns what deletes the expired runs and reports that; None where none are to be deleted."""
    age_s = job.keep_runs
    if age_s is None:
        return None
    return lambda: delete_expired(Storage.open(job.storage), age_s=age_s, but=job.name)


def delete_expired(
    storage: Storage,
    *,
    age_s: float,
    but: str,
    now: Callable[[], float] = time.time,
    timeout_s: float = _TIMEOUT_S,
) -> str | None:
    """Deletes the runs that have ended and were last written before `age_s`; returns a sentence about it.

    Damaged records are kept, as their age is unknown. Returns None where nothing was to be deleted.

    Args:
      but: A run that is kept.
      timeout_s: After which no other run is begun with.
    """
    begun_s = now()
    deleted: list[str] = []
    problems: list[str] = []
    try:
        for opened, record in expired_runs(storage, before_s=begun_s - age_s).runs:
            if opened.run == but:
                continue
            if now() - begun_s >= timeout_s:
                problems.append(f"the others are left to the next run, after {timeout_s:g} s")
                break
            try:
                remove_run(opened, record)
                deleted.append(opened.run)
            except (MistakeError, StorageError) as error:
                problems.append(f"{opened.run} is kept: {error}")
    except StorageError as error:
        problems.append(f"the runs cannot be listed: {error}")
    except KeyboardInterrupt:
        problems.append("ended by Ctrl-C")
    if not deleted and not problems:
        return None
    sentences = [f"keep_runs is {write_age(age_s)}: {_deleted(deleted)}", *problems[:_MAX_NAMED]]
    return "; ".join(sentences)


def _deleted(names: list[str]) -> str:
    if not names:
        return "no run was deleted"
    shown = ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")
    return f"{counted(len(names), 'run')} deleted that had ended ({shown})"
