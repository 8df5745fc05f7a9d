"""What a RunMachine is told (events), and what it asks for (actions)."""

from __future__ import annotations

from dataclasses import dataclass

from raydist.controller.task_group import GroupUpdate
from raydist.errors import RaydistError


@dataclass(frozen=True)
class GroupUpdated:
    """The group was polled."""

    update: GroupUpdate


@dataclass(frozen=True)
class GroupBroken:
    """The group could not be started, or no news can come from it any more."""

    error: RaydistError


@dataclass(frozen=True)
class StartDeadlinePassed:
    """The attempt has had its start timeout."""


@dataclass(frozen=True)
class GraceDeadlinePassed:
    """The time to hear of further failures after a collateral one is over."""


@dataclass(frozen=True)
class RunDeadlinePassed:
    """The run has had its timeout."""


@dataclass(frozen=True)
class CancelRequested:
    """A person asked to stop the run."""


@dataclass(frozen=True)
class GroupStopped:
    """The processes of the attempt are gone.

    Attributes:
      problem: Why some of them may still be there; None when all are gone.
    """

    problem: str | None = None


@dataclass(frozen=True)
class Crashed:
    """The controller itself cannot go on: a bug, or an exception that no one expected."""

    error: BaseException


Event = (
    GroupUpdated
    | GroupBroken
    | StartDeadlinePassed
    | GraceDeadlinePassed
    | RunDeadlinePassed
    | CancelRequested
    | GroupStopped
    | Crashed
)


@dataclass(frozen=True)
class StartAttempt:
    """Start the processes of that attempt; its start deadline begins now."""

    number: int


@dataclass(frozen=True)
class AwaitCollateral:
    """Go on polling for the grace period: the failure seen so far is only a consequence."""


@dataclass(frozen=True)
class StopGroup:
    """End the attempt's processes, then tell GroupStopped."""


Action = StartAttempt | AwaitCollateral | StopGroup
