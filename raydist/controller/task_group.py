"""What the controller needs of one attempt's processes; runtime.group makes the real one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raydist.spec.status import Order, TaskStatus


@dataclass(frozen=True, kw_only=True)
class GroupUpdate:
    """What became known since the last poll.

    Attributes:
      statuses: The newest status of each task that said something, a dead one's failure included
        (state FAILED with `failure` set; a process that vanished has FailureKind.LOST).
      all_placed: Whether every task has a process. `all_addressed`: and told its address.
      timings: Seconds since the attempt's start by phase (`placement`, `tasks_ready`), once known.
    """

    statuses: tuple[TaskStatus, ...] = ()
    all_placed: bool = False
    all_addressed: bool = False
    timings: tuple[tuple[str, float], ...] = ()


class TaskGroup(Protocol):
    """The processes of one attempt."""

    def poll(self, *, timeout_s: float) -> GroupUpdate:
        """Waits at most `timeout_s` for news and returns it; raises ClusterError when none can come.

        One that is raised before every task trains ends the run; later it costs an attempt.
        """

    def order(self, order: Order, tasks: Sequence[str] = ()) -> None:
        """Passes an order to the named tasks, or to all of them; never blocks on a busy task."""

    def stop(self) -> None:
        """Ends every process, placement group and temporary file of the attempt. Idempotent.

        A call that follows one which Ctrl-C interrupted, waits for no task to end by itself.
        """


class TaskGroupStarter(Protocol):
    """Starts the processes of attempt number `attempt`, and returns before they are placed.

    Raises a RaydistError for what cannot be started; then nothing of the attempt is left.
    """

    def __call__(self, attempt: int) -> TaskGroup: ...
