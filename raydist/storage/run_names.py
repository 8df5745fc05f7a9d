"""The names of the runs on a storage, by age, and which run a person means by one of them."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from raydist.errors import MistakeError, StorageError
from raydist.spec.job import check_run_name, is_run_name
from raydist.storage.filesystem import Storage
from raydist.storage.layout import INDEX, RunLayout
from raydist.storage.limits import parse_json
from raydist.storage.run_storage import RunStorage

LATEST = "@latest"
"""Names the run that was created last."""

# As many connections as pyarrow's S3 client has: an object store answers slowly, but many requests at once.
_THREADS = 25
_MAX_SHOWN = 5

Item = TypeVar("Item")
Result = TypeVar("Result")


def find_run(storage: Storage, asked: str) -> RunStorage:
    """Returns the run that is meant by its name, by a prefix that no other run has, or by `@latest`.

    A full name wins over a prefix.

    Raises:
      SpecError: It cannot be a run's name.
      MistakeError: There is no such run, or several begin like that; the message gives the names.
      StorageError: Storage cannot be read.
    """
    found = find_run_yet(storage, asked)
    if found is None:
        raise MistakeError(no_such_run(storage, asked))
    return found


def find_run_yet(storage: Storage, asked: str) -> RunStorage | None:
    """Returns the run as `find_run` does, but None where there is none by now.

    Raises:
      SpecError: It cannot be a run's name.
      MistakeError: Several runs begin like that; the message gives the names.
      StorageError: Storage cannot be read.
    """
    if asked == LATEST:
        latest = _latest(storage)
        return None if latest is None else RunStorage(storage, run=latest)
    check_run_name(asked)
    if storage.exists(RunLayout(run=asked).record):
        return RunStorage(storage, run=asked)
    folders = _folders(storage)
    if asked in folders:  # not taken for a prefix of others
        return None
    found = _with_record(storage, [name for name in folders if name.startswith(asked)])
    if len(found) == 1:
        return RunStorage(storage, run=found[0])
    if found:
        shown = ", ".join(found[:_MAX_SHOWN]) + (", …" if len(found) > _MAX_SHOWN else "")
        raise MistakeError(f"{len(found)} runs in {storage.uri()} begin with {asked!r}: {shown}; name one")
    return None


def run_names(storage: Storage) -> list[str]:
    """Returns the names of the runs kept here, sorted."""
    return _with_record(storage, _folders(storage))


def names_by_age(storage: Storage) -> list[str]:
    """Returns the names of the runs, the newest first.

    A run that is in the index may have lost its record since. Of the others, which an older raydist made or
    somebody copied, the record is read.
    """
    folders = set(_folders(storage))
    entries = filter(None, map(RunLayout.parse_index_entry, storage.list_names(INDEX)))
    created = {name: at_s for at_s, name in entries if name in folders}

    def of_record(name: str) -> float | None:
        content = _read_record(storage, name)
        return None if content is None else created_at_s(content)

    others = sorted(folders - created.keys())
    times = zip(others, _in_parallel(of_record, others), strict=True)
    created |= {name: at_s for name, at_s in times if at_s is not None}
    return sorted(created, key=lambda name: (created[name], name), reverse=True)


def read_contents(storage: Storage, names: Sequence[str]) -> dict[str, bytes | StorageError]:
    """Returns what each run's run.json holds, or why it cannot be read; nothing for a run without one."""
    found = zip(names, _in_parallel(lambda name: _read_record(storage, name), names), strict=True)
    return {name: content for name, content in found if content is not None}


def _read_record(storage: Storage, name: str) -> bytes | StorageError | None:
    try:
        return storage.read_bytes(RunLayout(run=name).record)
    except StorageError as error:
        return None if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError) else error


def no_such_run(storage: Storage, asked: str) -> str:
    """Returns the sentence about a run that does not exist, with the names that are near."""
    if asked == LATEST:
        return f"there is no latest run: no runs are kept in {storage.uri()}; give their place with --storage"
    folders = _folders(storage)
    if asked in folders:
        layout = RunLayout(run=asked)
        if storage.list_names(layout.checkpoints):
            return f"{storage.uri(layout.record)} is missing; {without_record(storage, asked)}"
        return (
            f"no run named {asked!r} in {storage.uri()}; its folder has no run.json: the run has not "
            "started yet, or did not come about"
        )
    near = _with_record(storage, difflib.get_close_matches(asked, folders, n=2 * _MAX_SHOWN))[:3]
    if near:
        hint = f"did you mean {' or '.join(near)}?"
    elif _with_record(storage, folders[:_THREADS]):  # whether there are any, not which
        hint = f"`raydist list --storage {shlex.quote(storage.uri())}` shows the runs that are there"
    elif storage.exists("run.json"):
        parent = shlex.quote(storage.uri().rpartition("/")[0])
        hint = f"that is the folder of one run; give the folder it is in: --storage {parent}"
    else:
        hint = "no runs are kept there; give their place with --storage"
    return f"no run named {asked!r} in {storage.uri()}; {hint}"


def without_record(storage: Storage, run: str) -> str:
    """Returns the remedy for a run whose run.json is lost."""
    if not storage.list_names(RunLayout(run=run).checkpoints):
        return "put back a copy of it, or give the run up and remove its folder"
    return (
        "put back a copy of it, or continue from the checkpoints with "
        f"`raydist submit JOB --name {run} --resume` and the options that the run had"
    )


def _latest(storage: Storage) -> str | None:
    names = names_by_age(storage)
    return next((name for name in names if storage.exists(RunLayout(run=name).record)), None)


def created_at_s(content: bytes | StorageError) -> float:
    """Returns the time of creation that a run.json has; 0.0 where it is damaged."""
    try:
        created = parse_json(content)["created_at_s"] if isinstance(content, bytes) else None
        return float(created) if isinstance(created, int | float) else 0.0
    except (ValueError, KeyError, TypeError, OverflowError):
        return 0.0


def _folders(storage: Storage) -> list[str]:
    """Returns the names of the folders that may be runs."""
    return [name for name in storage.list_names("") if is_run_name(name)]


def _with_record(storage: Storage, names: Sequence[str]) -> list[str]:
    exist = _in_parallel(lambda name: _has_record(storage, name), names)
    return [name for name, does_exist in zip(names, exist, strict=True) if does_exist]


def _has_record(storage: Storage, name: str) -> bool:
    try:
        return storage.exists(RunLayout(run=name).record)
    except StorageError:
        return True  # a damaged one


def _in_parallel(do: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="raydist-runs") as threads:
        return list(threads.map(do, items))
