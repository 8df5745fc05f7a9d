"""A job that builds no strategy: it runs in the scope of the run's, and reads what it has written itself.

Every worker runs the same program, as one process would. What it writes into its own working folder is its
own file, which it can read again. Of a file elsewhere there is one for all workers of a host. A job with a
loop of its own has no strategy either, and its workers never wait for each other.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.planning.assignment import TaskAssignment
from raydist.training.cluster import collective_calls, collectives, shared_files
from raydist.training.reporting import reporter

ONE_FILE = "workers of one host write one file at the same time, and read it half-written"


class _Job:
    """The job of this process, if it builds no strategy.

    Attributes:
      strategy: The run's; None where the job has built another one, or there is no such job.
      folder: The working folder of this task, a copy of its own; None where the job has none.
      hosts: The host of each worker that runs the same.
      seeds: Where generators of NumPy without a seed get one.
    """

    strategy: ClassVar[tf.distribute.Strategy | None] = None
    folder: ClassVar[Path | None] = None
    index: ClassVar[int] = 0
    hosts: ClassVar[Sequence[str]] = ()
    seeds: ClassVar[random.Random] = random.Random()


@contextlib.contextmanager
def as_default(strategy: tf.distribute.Strategy, assignment: TaskAssignment) -> Iterator[None]:
    """Has what the block makes made in a strategy's scope."""
    writes = {"should_checkpoint": True, "should_save_summary": True}  # libraries ask for both

    def tell_late(name: str) -> None:
        reporter.note(
            f"{name} has no effect in {assignment.job.entry_point}, because TensorFlow has its devices and "
            "threads before a job that builds no strategy begins (raydist guide scripts)"
        )

    with (
        alike(assignment),
        tf_private.settled_devices(tell_late),
        tf_private.changed(_Job, strategy=strategy),
        tf_private.changed(type(strategy.extended), **writes),
        tf_private.scope_of_program(strategy),
    ):
        yield


@contextlib.contextmanager
def alike(assignment: TaskAssignment) -> Iterator[None]:
    """Has all workers run the block alike, which builds no strategy, with the same random numbers.

    Generators of NumPy that get no seed begin alike too: `default_rng()` asks the system for one.
    """
    hosts = [one.rpartition(":")[0] for one in assignment.cluster_spec.as_dict().get("worker", ())]
    folder = None if assignment.job.working_dir is None else Path.cwd().resolve()
    seeds = random.Random(assignment.job.seed)
    is_beside_chief = not hosts or hosts[assignment.task.index] == hosts[0]
    with (
        tf_private.changed(_Job, folder=folder, index=assignment.task.index, hosts=hosts, seeds=seeds),
        tf_private.changed(np.random.bit_generator, randbits=seeds.getrandbits),
        shared_files.written_as_by_one(
            _is_shared, is_chief=assignment.is_chief, is_beside_chief=is_beside_chief
        ),
    ):
        yield


def leave(seed: str) -> None:
    """Makes a forked process a program by itself, which draws by another seed."""
    _Job.strategy = None
    _Job.seeds.seed(seed)
    random.seed(seed)


def builds_none() -> bool:
    """Whether the job builds no strategy, and runs in the scope of the run's."""
    return _Job.strategy is not None


def _is_shared(path: Any) -> bool:
    """Whether other workers may write that file too, which is not in the working folder of this one.

    Also this worker's own are a relative path to a place beside it, and what /proc says of a process. A link
    in the folder may lead to a shared file. A device such as /dev/null keeps nothing.
    """
    if len(_Job.hosts) < 2 or not isinstance(path, str | os.PathLike):
        return False
    place, is_remote = Path(path).resolve(), "://" in os.fspath(path)
    if place.is_relative_to("/proc") or place.is_char_device():
        return False
    if _Job.folder is None:
        return True
    own = _Job.folder if Path(path).is_absolute() else _Job.folder.parent
    if place.is_relative_to(temporary := Path(tempfile.gettempdir()).resolve()):
        own = temporary if temporary.is_relative_to(_Job.folder.parent) else own
    return is_remote or not place.is_relative_to(own)


def written_here(paths: Sequence[str | os.PathLike[str]]) -> list[bool]:
    """Returns which files this worker writes: its own, and each that it sees first of all workers.

    A collective, also of workers that write nothing, or to other paths. Of those with one path, the first
    writes, and the first of each host that does not see what that writes.
    """
    strategy, index = _Job.strategy, _Job.index
    assert strategy is not None
    shared = {os.fspath(one): _key_of(one) for one in paths if _is_shared(one)}
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

    The others write aside, as what is written may be read from all of them. Workers' own files need nothing.
    Inside of `fit`, and in a loop of the job's own, nobody waits: all put the same in its place.

    Args:
      name: The call that all workers make, such as `model.save`.
    """
    strategy = _Job.strategy
    if not _is_shared(path):
        return write(path)
    if strategy is None or collective_calls.is_inside():
        return put(path, write)
    with collective_calls.made_by_all(name, strategy), tempfile.TemporaryDirectory() as aside:
        own = path if written_here([path])[0] else os.path.join(aside, os.path.basename(path))
        try:
            return write(own)
        finally:
            collectives.gather_over_workers(strategy, [0])


def put(path: Any, write: Callable[[Any], Any]) -> Any:
    """Writes aside and moves that into its place, where other workers may write the same at this moment."""
    folder, name = os.path.split(os.path.abspath(path))
    if not _is_shared(path) or "://" in os.fspath(path) or not os.path.isdir(folder):
        return write(path)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".raydist-") as aside:
        result = write(os.path.join(aside, name))
        for one in os.listdir(aside):
            _move(os.path.join(aside, one), os.path.join(folder, one))
    return result


def _move(made: str, place: str) -> None:
    while True:
        try:
            os.replace(made, place)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
        with contextlib.suppress(FileNotFoundError):  # another worker has moved the folder away
            os.rename(place, f"{made}-{secrets.token_hex(4)}")
