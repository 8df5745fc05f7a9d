"""What the controller is given: the time, and the processes of one attempt, which runtime.group makes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from raydist.outcome.printed import Printed
from raydist.outcome.status import Command, TaskStatus
from raydist.planning.plan import Plan
from raydist.spec.tasks import TaskId, TaskType


class Clock(Protocol):
    def now(self) -> float:
        """Returns seconds that only ever grow, for limits and durations."""

    def unix(self) -> float:
        """Returns Unix time in seconds, which tasks on other hosts use as well."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()


@dataclass(frozen=True, kw_only=True)
class GroupUpdate:
    """What became known since the last poll.

    Attributes:
      statuses: The newest status of each task that sent one, a dead one's failure included
        (state FAILED with `failure` set; a process that vanished has FailureKind.LOST).
      printed: What the script printed in tasks, each task's in its order; empty where nobody watches it.
      all_placed: Whether every task has had a process.
      all_addressed: Whether every task has the addresses of the others; a task that dies from here
        on can be replaced.
      notes: Sentences about extra roles, all so far.
      timings: Seconds since the attempt's start by phase (`placement`, `tasks_ready`), once known.
    """

    statuses: tuple[TaskStatus, ...] = ()
    printed: tuple[Printed, ...] = ()
    all_placed: bool = False
    all_addressed: bool = False
    timings: tuple[tuple[str, float], ...] = ()
    notes: tuple[str, ...] = ()


class TaskGroup(Protocol):
    """The processes of one attempt."""

    def poll(self, *, timeout_s: float) -> GroupUpdate:
        """Waits at most `timeout_s` for news and returns it; raises ClusterError when none can come.

        TaskFailedError is raised where an extra role has failed.

        One that is raised before every task trains ends the run; later it costs an attempt.
        """

    def command(self, command: Command, tasks: Sequence[TaskId] = ()) -> None:
        """Passes a command to those tasks, or to all of them; never blocks on a busy task."""

    def replace(self, task: TaskId) -> None:
        """Starts a new process for a task that died, and returns before it is placed.

        It takes the dead one's place: the same resources and assignment, and the same host and port where
        they can be had. Its statuses have the next `incarnation`; statuses of the one before are ignored.
        The chief of parameter servers is told of another address, where the plan `follows_workers`. Elsewhere
        one that comes up at another address stays STARTING.
        """

    def add_workers(self, plan: Plan) -> None:
        """Starts the workers that `plan` has besides, and returns before they are placed."""

    def remove_workers(self, plan: Plan) -> None:
        """Ends what is left of the workers that `plan` does without, and gives their room back."""

    def stop(self, *, for_another: bool = False, keeps_state: bool = True) -> None:
        """Ends every process, placement group and temporary file of the attempt. Idempotent.

        A call that follows one which Ctrl-C interrupted, waits for no task to end by itself.

        Args:
          for_another: Another attempt follows; the launcher may keep what it can use.
          keeps_state: Whether that may continue from a state in memory; else it continues from a checkpoint.
        """

    def last_update(self) -> GroupUpdate:
        """Returns, after `stop`, what became known since the last `poll`."""


class Launcher(Protocol):
    """What the cluster can do for a run."""

    def replan(
        self,
        *,
        avoid: frozenset[str],
        suspected: frozenset[str] = frozenset(),
        out_of_memory: Sequence[TaskType] = (),
    ) -> Plan:
        """Returns the plan of the next attempt, for what the cluster has just now.

        Args:
          avoid: Addresses of hosts that failed too often; used all the same where the others have no room.
          suspected: Addresses of hosts to look at first; one with a problem is avoided as well.
          out_of_memory: The roles that were short of memory, once for each attempt that was lost by it.
        """

    def room(self, plan: Plan, *, is_placed: bool) -> int:
        """Returns how many workers the run could have just now, without the hosts that `plan` avoids.

        Args:
          is_placed: Whether the workers of `plan` have their room already, and count.
        """

    def launch(self, plan: Plan, *, attempt: int) -> TaskGroup:
        """Starts the processes of that attempt, and returns before they are placed.

        Raises a RaydistError for what cannot be started; then nothing of the attempt is left.
        """

    def close(self) -> None:
        """Gives back what is kept for another attempt: none follows. Idempotent."""
