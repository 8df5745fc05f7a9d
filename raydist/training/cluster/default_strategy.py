"""A job that builds no strategy: it runs in the scope of the run's, and reads what it has written itself.

Every worker runs the same program, as one process would. What it writes into its own working folder is its
own file, which it can read again. Of a file elsewhere there is one for all workers of a host.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
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
      is_first_of_host: Whether no worker before it is on this host.
    """

    strategy: ClassVar[tf.distribute.Strategy | None] = None
    folder: ClassVar[Path] = Path()
    is_chief: ClassVar[bool] = True
    is_first_of_host: ClassVar[bool] = True


@contextlib.contextmanager
def as_default(
    strategy: tf.distribute.Strategy, assignment: TaskAssignment, *, note: Callable[[str], None]
) -> Iterator[None]:
    """Has what the block makes made in a strategy's scope, with the same random numbers in all workers.

    Generators of NumPy that get no seed begin alike too: `default_rng()` asks the system for one.

    Args:
      note: Adds a sentence to the run's notes.
    """
    hosts = [one.rpartition(":")[0] for one in assignment.cluster_spec.as_dict().get("worker", ())]
    index = assignment.task.index
    job = {
        "strategy": strategy,
        "folder": Path.cwd().resolve(),
        "is_chief": assignment.is_chief,
        "is_first_of_host": not hosts or hosts.index(hosts[index]) == index,
    }
    seeds = random.Random(assignment.job.seed)

    def tell_late(name: str) -> None:
        note(
            f"{name} has no effect in {assignment.job.entry_point}, because TensorFlow has its devices and "
            "threads before a job that builds no strategy begins (raydist guide scripts)"
        )

    with (
        tf_private.settled_devices(tell_late),
        tf_private.changed(_Job, **job),
        tf_private.changed(np.random.bit_generator, randbits=seeds.getrandbits),
        tf_private.scope_of_program(strategy),
    ):
        yield


def is_default() -> bool:
    """Whether the job builds no strategy, and runs in the scope of the run's."""
    return _Job.strategy is not None


def keeps_own_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is this worker's own: in the working folder of a job that builds no strategy.

    Or beside it, by a path that begins there. A link in it may lead to a file that all workers see.
    """
    if not is_default():
        return False
    place = Path(path).resolve()
    is_beside = not Path(path).is_absolute() and place.is_relative_to(_Job.folder.parent)
    return place.is_relative_to(_Job.folder) or is_beside


def is_writer(path: str | os.PathLike[str]) -> bool:
    """Whether this worker writes a file that is no worker's own, for all that see it there: a collective.

    That is the chief, and the first worker of each host where what the chief writes is not seen.
    """
    assert _Job.strategy is not None
    if "://" in os.fspath(path):
        return _Job.is_chief
    folders = Path(path).absolute().parents
    number, mark = secrets.randbits(62), None
    if _Job.is_chief:
        mark = next(one for one in folders if one.is_dir()) / f".raydist-{number}"
        with contextlib.suppress(OSError):  # of which the write itself will tell
            mark.touch()
    number = collectives.gather_over_workers(_Job.strategy, [number])[0][0]
    is_seen = any((one / f".raydist-{number}").exists() for one in folders)
    collectives.gather_over_workers(_Job.strategy, [is_seen])
    if mark is not None:
        mark.unlink(missing_ok=True)
    return _Job.is_chief or (_Job.is_first_of_host and not is_seen)


def write_once(name: str, path: Any, write: Callable[[Any], Any]) -> Any:
    """Has one worker write a file of a job that builds no strategy, for all that see it; then they go on.

    The others write aside, as what is written may be read from all of them. Workers' own files need nothing.
    In `fit` a callback may run in one worker alone, so nobody waits: the first worker of each host writes,
    and all can read once `fit` has ended.

    Args:
      name: The call that all workers make, such as `model.save`.
      path: What is written, a file or a folder.
      write: Writes to the path that it is given.
    """
    is_path = isinstance(path, str | os.PathLike)
    strategy = _Job.strategy
    if strategy is None or not is_path or keeps_own_file(path) or collectives.is_alone(strategy):
        return write(path)
    with tempfile.TemporaryDirectory() as folder:
        aside = os.path.join(folder, os.path.basename(path))
        if collective_calls.is_inside():
            return write(path if _Job.is_first_of_host else aside)
        with collective_calls.made_by_all(name, strategy):
            own = path if is_writer(path) else aside
            try:
                return write(own)
            finally:
                collectives.gather_over_workers(strategy, [0])
