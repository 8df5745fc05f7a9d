"""What a RunMachine takes in (events), and what it asks for (actions)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from raydist.controller.task_group import GroupUpdate
from raydist.errors import RaydistError
from raydist.outcome.status import Command, TaskStatus
from raydist.planning.plan import Plan
from raydist.spec.tasks import TaskId, TaskType


@dataclass(frozen=True)
class GroupUpdated:
    """The group was polled.

    Attributes:
      at_s: Unix time. `now_s`: seconds of a clock that never jumps.
    """

    update: GroupUpdate
    at_s: float = 0.0
    now_s: float = 0.0


@dataclass(frozen=True)
class AttemptPlanned:
    """The attempt that is about to start has been fitted to what the cluster has."""

    plan: Plan


@dataclass(frozen=True)
class RoomFound:
    """The cluster has room for so many workers, those that train included."""

    num_workers: int


@dataclass(frozen=True)
class GroupBroken:
    """The group could not be started, or no news can come from it any more."""

    error: RaydistError


class Deadline(enum.Enum):
    """A time limit."""

    RUN = "RUN"  # the run's timeout
    START = "START"  # the attempt's start timeout
    GRACE = "GRACE"  # how long further failures are waited for after one that is only a consequence
    SAVE = "SAVE"  # how long a chief, or a program that saves by itself, gets for it before it is restarted
    STACKS = "STACKS"  # how long tasks without progress get to dump their stacks and to say where they are


@dataclass(frozen=True)
class DeadlinePassed:
    """A deadline has passed."""

    deadline: Deadline


@dataclass(frozen=True)
class CancelRequested:
    """A person asked to stop the run."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """The newest committed checkpoint of the run."""

    step: int
    uri: str


@dataclass(frozen=True)
class GroupStopped:
    """The processes of the attempt are gone.

    Attributes:
      problem: Why some of them may still be there; None when all are gone.
      statuses: What the tasks sent since the last update; they train on until their processes end.
      checkpoint: What is on storage now; None where there is none, or storage could not be read.
      is_checkpoint_gone: Whether one was reported, and storage has none.
      note: What is to be said about the checkpoint; None where it is there, or none was reported.
    """

    problem: str | None = None
    statuses: tuple[TaskStatus, ...] = ()
    checkpoint: StoredCheckpoint | None = None
    is_checkpoint_gone: bool = False
    note: str | None = None


@dataclass(frozen=True)
class Crashed:
    """The controller itself cannot continue: a bug, or an exception that no one expected."""

    error: BaseException


Event = (
    GroupUpdated
    | AttemptPlanned
    | RoomFound
    | GroupBroken
    | DeadlinePassed
    | CancelRequested
    | GroupStopped
    | Crashed
)


@dataclass(frozen=True)
class StartAttempt:
    """Start the processes of that attempt; its start deadline begins now.

    Attributes:
      avoid: Addresses of the hosts that failed too often of late.
      out_of_memory: The roles that were short of memory, once for each attempt that was lost by it.
      suspected: Addresses of the hosts to look at before they are used again.
      speeds: As `Plan` has them.
    """

    number: int
    avoid: frozenset[str] = frozenset()
    out_of_memory: tuple[TaskType, ...] = ()
    suspected: frozenset[str] = frozenset()
    speeds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplaceTask:
    """Start a new process in the place of that task's dead one."""

    task: TaskId


@dataclass(frozen=True)
class AddWorkers:
    """Start the workers that this plan has beside those of the attempt."""

    plan: Plan


@dataclass(frozen=True)
class RemoveWorkers:
    """End what is left of the workers that this plan does without, and give their room back."""

    plan: Plan


@dataclass(frozen=True)
class SendCommand:
    """Pass a command to those tasks."""

    command: Command
    tasks: tuple[TaskId, ...]


@dataclass(frozen=True)
class Await:
    """Continue polling, until that deadline at the latest: GRACE, SAVE or STACKS, whose time starts now."""

    deadline: Deadline


@dataclass(frozen=True)
class StopGroup:
    """End the attempt's processes; GroupStopped follows.

    Attributes:
      for_another: Whether another attempt follows.
      keeps_state: Whether that may continue from a state in memory.
    """

    for_another: bool = False
    keeps_state: bool = True


Action = StartAttempt | ReplaceTask | AddWorkers | RemoveWorkers | SendCommand | Await | StopGroup
