"""A job that builds no strategy: it runs in the scope of the run's, and reads what it has written itself.

Every worker runs the same program, as one process would. What it writes into its own working folder is its
own file, which it can read again. Of a file elsewhere there is one for all workers of a host.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf

from raydist.planning.assignment import TaskAssignment
from raydist.training import tf_private
from raydist.training.cluster import collective_calls, collectives

ONE_FILE = "workers of one host write one file at the same time, and read it half-written"


class _Job:
    """The job of this process, if it builds no strategy.

    Attributes:
      strategy: The run's; None where the job has built another one, or there is no such job.
      folder: The working folder of this task.
      index: Which of the workers this is.
      hosts: The host of each worker; empty where there is one worker.
    """

    strategy: ClassVar[tf.distribute.Strategy | None] = None
    folder: ClassVar[Path] = Path()
    index: ClassVar[int] = 0
    hosts: ClassVar[Sequence[str]] = ()


@contextlib.contextmanager
def as_default(strategy: tf.distribute.Strategy, assignment: TaskAssignment) -> Iterator[None]:
    """Has what the block makes made in a strategy's scope."""
    hosts = [one.rpartition(":")[0] for one in assignment.cluster_spec.as_dict().get("worker", ())]
    job = {"strategy": strategy, "folder": Path.cwd(), "index": assignment.task.index, "hosts": hosts}
    writes = {"should_checkpoint": True, "should_save_summary": True}  # libraries ask for both
    with (
        tf_private.changed(_Job, **job),
        tf_private.changed(type(strategy.extended), **writes),
        tf_private.kept_scope(strategy),
    ):
        yield


def is_default() -> bool:
    """Whether the job builds no strategy, and runs in the scope of the run's."""
    return _Job.strategy is not None


def keeps_own_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is this worker's own: in the working folder of a job that builds no strategy."""
    is_local = is_default() and "://" not in os.fspath(path)
    return is_local and Path(os.path.abspath(path)).is_relative_to(_Job.folder)


def written_here(paths: Sequence[str | os.PathLike[str]]) -> list[bool]:
    """Returns which files this worker writes: its own, and each that it sees first of all workers.

    A collective, also of workers that write nothing, or to other paths. Of a path that several have, the first
    writes, and the first of each host that does not see what that writes.
    """
    strategy, index = _Job.strategy, _Job.index
    assert strategy is not None
    shared = {os.fspath(one): _key_of(one) for one in paths if not keeps_own_file(one)}
    counts = collectives.gather_over_workers(strategy, [len(shared), secrets.randbits(62)])
    most, run = max(count for count, _ in counts), counts[0][1]
    if most == 0:
        return [True for _ in paths]
    keys = collectives.gather_over_workers(strategy, [*shared.values(), *[0] * (most - len(shared))])
    leaders = {key: next(worker for worker, row in enumerate(keys) if key in row) for key in shared.values()}
    marks: list[Path] = []
    for path, key in shared.items():
        if leaders[key] == index and "://" not in path:
            folder = next(one for one in Path(path).absolute().parents if one.is_dir())
            with contextlib.suppress(OSError):  # of which the write itself will tell
                marks.append(folder / f".raydist-{run}-{key}")
                marks[-1].touch()
    collectives.gather_over_workers(strategy, [0])
    written = {}
    for path, key in shared.items():
        folders = Path(path).absolute().parents
        is_seen = "://" in path or any((one / f".raydist-{run}-{key}").exists() for one in folders)
        peers = [one for one, row in enumerate(keys) if key in row and _Job.hosts[one] == _Job.hosts[index]]
        written[path] = leaders[key] == index or (not is_seen and peers[0] == index)
    collectives.gather_over_workers(strategy, [0])
    for mark in marks:
        mark.unlink(missing_ok=True)
    return [written.get(os.fspath(one), True) for one in paths]


def _key_of(path: str | os.PathLike[str]) -> int:
    name = os.fspath(path)
    name = name if "://" in name else os.path.abspath(name)
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "big")


def write_once(name: str, path: Any, write: Callable[[Any], Any]) -> Any:
    """Has one worker write a file of a job that builds no strategy, for all that see it; then they go on.

    The others write aside, as what is written may be read from all of them. Workers' own files, and what is
    written inside of `fit`, need nothing.

    Args:
      name: The call that all workers make, such as `model.save`.
      path: What is written, a file or a folder.
      write: Writes to the path that it is given.
    """
    is_path = isinstance(path, str | os.PathLike)
    strategy = _Job.strategy
    if strategy is None or not is_path or keeps_own_file(path) or collective_calls.is_inside():
        return write(path)
    with collective_calls.made_by_all(name, strategy), tempfile.TemporaryDirectory() as aside:
        if collectives.is_alone(strategy):
            return write(path)
        own = path if written_here([path])[0] else os.path.join(aside, os.path.basename(path))
        try:
            return write(own)
        finally:
            collectives.gather_over_workers(strategy, [0])
