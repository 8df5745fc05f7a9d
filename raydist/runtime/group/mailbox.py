"""Mailbox: where tasks leave their statuses and find their commands."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from raydist.spec.status import Command, TaskStatus
from raydist.spec.tasks import TaskId

# News of many tasks is gathered this long, so that a large run does not keep the controller busy.
_GATHER_S = 0.1
# And progress this long: the tasks send it at different times, so that two would wake it 4 times a second.
_GATHER_PROGRESS_S = 0.5


@dataclass(frozen=True, kw_only=True)
class News:
    """What came in since a `wait_news`; `seq` goes into the next one."""

    seq: int
    statuses: tuple[TaskStatus, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Departed:
    """The tasks that obeyed STOP and can be killed, and the newest status of every task."""

    tasks: tuple[TaskId, ...] = ()
    statuses: tuple[TaskStatus, ...] = ()


class Mailbox:
    """An async actor without CPUs, one per attempt.

    A busy plain actor cannot be called, and a task cannot call a driver: both sides call this one.
    The tasks take its death for the end of their run.
    """

    def __init__(self) -> None:
        self._seq = self._pressing_seq = 0
        self._answered_at_s = -math.inf
        self._statuses: dict[TaskId, tuple[int, TaskStatus]] = {}
        self._commands: dict[TaskId, list[Command]] = {}
        self._incarnations: dict[TaskId, int] = {}
        self._departed: set[TaskId] = set()
        self._parcels: dict[str, list[Any]] = {}
        self._changed = asyncio.Condition()

    async def exchange(self, status: TaskStatus, *, wait_s: float) -> tuple[Command, ...]:
        """Takes a task's newest status; returns its commands, at once or as soon as one comes in `wait_s`."""
        await self._put(status)
        await self._wait_until(lambda: status.task in self._commands, wait_s)
        # The call of a process that has died since must not take what is meant for the one in its place.
        return tuple(self._commands.pop(status.task, ())) if self._is_newest(status) else ()

    async def command(self, command: Command, tasks: Sequence[TaskId]) -> None:
        """Leaves a command for each of `tasks`, those included that have sent no status yet."""
        async with self._changed:
            for task in tasks:
                self._commands.setdefault(task, []).append(command)
            self._changed.notify_all()

    async def replace(self, task: TaskId, *, incarnation: int) -> None:
        """Forgets the task's dead process: its last status, and the commands that it has not taken."""
        self._incarnations[task] = incarnation
        self._statuses.pop(task, None)
        self._commands.pop(task, None)

    async def wait_news(self, since: int, *, timeout_s: float) -> News:
        """Returns the newest status of each task that pushed one after `since`, once there is any.

        Statuses with nothing but progress are gathered for half a second; anything else comes at once.
        """
        if not await self._wait_until(lambda: self._seq > since, timeout_s):
            return News(seq=since)
        await asyncio.sleep(_GATHER_S)
        rest_s = self._answered_at_s + _GATHER_PROGRESS_S - time.monotonic()
        if rest_s > 0 and await self._wait_until(lambda: self._pressing_seq > since, rest_s):
            await asyncio.sleep(_GATHER_S)
        self._answered_at_s = time.monotonic()
        statuses = tuple(status for seq, status in self._statuses.values() if seq > since)
        return News(seq=self._seq, statuses=statuses)

    async def put_parcel(self, key: str, ref: list[Any]) -> None:
        """Keeps a reference to what a task leaves for the others; in a list, or Ray would fetch it."""
        async with self._changed:
            self._parcels[key] = ref
            self._changed.notify_all()

    async def get_parcel(self, key: str, *, wait_s: float) -> list[Any] | None:
        """Returns the reference, as soon as it comes in `wait_s`; None if it does not."""
        await self._wait_until(lambda: key in self._parcels, wait_s)
        return self._parcels.get(key)

    async def depart(self, status: TaskStatus) -> None:
        """Takes the last status of a task that obeyed STOP: its log is stored, its files are gone."""
        await self._put(status)
        async with self._changed:
            self._departed.add(status.task)
            self._changed.notify_all()

    async def wait_departed(self, tasks: Sequence[TaskId], *, timeout_s: float) -> Departed:
        """Waits until all of `tasks` have departed, or the time is up."""
        await self._wait_until(lambda: self._departed.issuperset(tasks), timeout_s)
        return Departed(
            tasks=tuple(task for task in tasks if task in self._departed),
            statuses=tuple(status for _, status in self._statuses.values()),
        )

    def _is_newest(self, status: TaskStatus) -> bool:
        return status.incarnation >= self._incarnations.get(status.task, 0)

    async def _put(self, status: TaskStatus) -> None:
        if not self._is_newest(status):
            return
        async with self._changed:
            self._incarnations[status.task] = status.incarnation
            _, known = self._statuses.get(status.task, (0, None))
            if known == status:
                return  # of a process that has sent none since; its agent's exchanges are no heartbeats of it
            self._seq += 1
            if known is None or _without_progress(known) != _without_progress(status):
                self._pressing_seq = self._seq
            self._statuses[status.task] = (self._seq, status)
            self._changed.notify_all()

    async def _wait_until(self, predicate: Callable[[], bool], timeout_s: float) -> bool:
        """Waits for a change after which the predicate holds; returns whether it came in time."""

        async def changed() -> None:
            async with self._changed:
                await self._changed.wait_for(predicate)

        if predicate():
            return True
        try:
            await asyncio.wait_for(changed(), timeout_s)  # asyncio.timeout came with Python 3.11
        except asyncio.TimeoutError:
            return False
        return True


def _without_progress(status: TaskStatus) -> tuple[object, ...]:
    """Returns what the run acts on."""
    return (
        *(status.state, status.incarnation, status.first_step_at_s, status.checkpoint),
        *(status.leaving, status.is_joining, status.place, status.notes, status.failure),
    )
