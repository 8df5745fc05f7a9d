"""Processes that a job starts by itself, by Python's multiprocessing or joblib: what they train is undivided.

Each worker's do all of the work, as those of one process would. TensorFlow has its threads before the job
begins, and a forked process has none of them: it gets a TensorFlow that has not begun.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, ClassVar

from raydist import tf_private
from raydist.planning.assignment import TaskAssignment
from raydist.training.cluster import default_strategy
from raydist.training.reporting import reporter


class _Forks:
    """The forks of this process.

    Attributes:
      in_child: What a forked process does first, with its number; None where the job has its own strategy.
      count: How many there were.
      is_known: Whether Python calls them.
    """

    in_child: ClassVar[Callable[[int], None] | None] = None
    count: ClassVar[int] = 0
    is_known: ClassVar[bool] = False


@contextlib.contextmanager
def on_their_own(assignment: TaskAssignment) -> Iterator[None]:
    """Has processes that the block starts train as in plain Python, and tells of them once.

    Forked ones draw the same numbers in all workers where they have no seed. The block ends as a program
    does: it waits for its processes, and stops daemons.
    """

    def in_child(number: int) -> None:
        reporter.set_current(None)  # it reports nothing
        tf_private.begin_anew()
        default_strategy.leave(f"{assignment.job.seed}/{number}")

    def start(self: Any) -> None:
        if num_workers > 1 and not _is_of_keras(sys._getframe(1)):
            reporter.note(
                f"{name} starts processes of its own: each of {num_workers} workers starts them, and models "
                "that they train are not divided. Set a seed in them (keras.utils.set_random_seed), so that "
                "all workers get the same results"
            )
        original(self)

    num_workers, name = assignment.num_workers, str(assignment.job.entry_point)
    original = BaseProcess.start
    if not _Forks.is_known:
        _Forks.is_known = True
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
    with tf_private.changed(_Forks, in_child=in_child), tf_private.changed(BaseProcess, start=start):
        try:
            yield
            for one in multiprocessing.active_children():
                if not (one.daemon or type(one).__module__.startswith("joblib.")):  # joblib keeps its own
                    one.join()
        finally:
            for one in multiprocessing.active_children():
                one.terminate()


def _before_fork() -> None:
    _Forks.count += 1


def _after_fork() -> None:
    if (in_child := _Forks.in_child) is not None:
        _Forks.in_child = None
        in_child(_Forks.count)


def _is_of_keras(frame: FrameType | None) -> bool:
    """Whether Keras starts the process, which loads data."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith(("keras.", "tf_keras.")):
            return True
        frame = frame.f_back
    return False
