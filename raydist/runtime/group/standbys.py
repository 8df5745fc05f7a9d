"""Agents without a task: standbys for that of a lost host, and those of workers that are about to begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from raydist.runtime.cluster.inventory import is_node_there
from raydist.runtime.cluster.placement import Placement, Room
from raydist.runtime.task.greeting import TaskSetup
from raydist.spec.tasks import Resources, TaskId

# A host that cannot run one would be asked again and again.
_MOST_DEATHS = 3
# How long an attempt goes on without the workers that there is room for, until their hosts have imported.
_PREPARATION_S = 60.0
# How long room for more workers is kept. An attempt with them begins once the chief has saved, as it is told.
_UNUSED_S = 180.0


@dataclass(frozen=True)
class _Standby:
    """One that was asked for.

    Attributes:
      ready: The reference to its node's id, once it has room and its host has begun to import.
      death: The reference to a call that only the agent's death ends.
    """

    agent: Any
    room: Room
    resources: Resources
    ready: Any
    death: Any

    @classmethod
    def of(cls, agent: Any, setup: TaskSetup, room: Room, *, is_awaited: bool = False) -> _Standby:
        """Has an agent stand by, and takes what it answers.

        Args:
          is_awaited: Whether it is ready only once its host has imported.
        """
        ready, death = agent.stand_by.remote(setup, is_awaited=is_awaited), agent.linger.remote()
        return cls(agent, room, setup.resources, ready, death)

    @property
    def is_dead(self) -> bool:
        return _has_ended(self.death) or (_has_ended(self.ready) and self._id is None)

    @property
    def node_id(self) -> str | None:
        """The id of its node; None while it is not ready, and once it has died."""
        return self._id if _has_ended(self.ready) and not _has_ended(self.death) else None

    @property
    def _id(self) -> str | None:
        try:
            return str(ray.get(self.ready))
        except RayError:
            return None


class Standbys:
    """Waits for nothing: a standby serves once it is there."""

    def __init__(self, count: int, *, create: Callable[[TaskSetup, Any], Any]) -> None:
        """Takes how many there are to be, and what asks Ray for an agent by its set-up and its place."""
        self._count = count
        self._create = create
        self._waiting: list[_Standby] = []
        self._vacated: list[Room] = []  # by tasks that have taken a standby's
        self.failed_starts = FailedStarts("standbys")

    def complete(self, setup: TaskSetup, placement: Placement, *, away_from: Collection[str]) -> None:
        """Asks for the next that is missing, for tasks like that one, on another node than these.

        One at a time, since none is to be on the node of another.
        """
        nodes = [one.node_id for one in self._waiting]
        if len(nodes) >= self._count or None in nodes or self.failed_starts.are_too_many:
            return
        used = {*away_from, *filter(None, nodes)}
        if not self._vacated:
            room = placement.request_more(setup.resources, away_from=used)
        elif (node_id := placement.node_of(self._vacated[-1])) is None:
            return  # Ray looks for another host for the bundle that a lost one had
        else:
            room = self._vacated.pop()
            if node_id in used:
                return  # it stays in the placement group, and is of no use
        agent = self._create(setup, room.strategy)
        self._waiting.append(_Standby.of(agent, setup, room))

    def discard(
        self, placement: Placement, *, avoid: Collection[str] = (), is_room_needed: bool = False
    ) -> None:
        """Does without those that have ended, or are on nodes that are to be avoided.

        Args:
          is_room_needed: Whether those that still wait for room are not to, as a task does.
        """
        for one in list(self._waiting):
            if one.is_dead or one.node_id in avoid or (is_room_needed and one.node_id is None):
                self.failed_starts.count(one)
                self._waiting.remove(one)
                ray.kill(one.agent)
                if not placement.give_back(one.room):
                    self._vacated.append(one.room)

    def take(self, task: TaskId, resources: Resources, placement: Placement) -> Any:
        """Gives the task the room of a standby, and returns its agent; None where none is ready."""
        fitting = (one for one in self._waiting if one.resources == resources and one.node_id is not None)
        one = next(fitting, None)
        if one is None:
            return None
        self._waiting.remove(one)
        vacated = placement.swap(task, one.room)
        if vacated is not None and not placement.give_back(vacated):
            self._vacated.append(vacated)
        return one.agent

    def kill(self) -> None:
        """Ends those that wait; their room is the placement's to give back. Idempotent."""
        waiting, self._waiting = self._waiting, []
        self._vacated.clear()
        for one in waiting:
            ray.kill(one.agent)


class Growth:
    """Agents for the workers that an elastic run will add, each in its room.

    The run continues with fewer workers until their hosts have imported TensorFlow.
    """

    def __init__(self, *, create: Callable[[TaskSetup, Any], Any]) -> None:
        """Takes what asks Ray for an agent by its set-up and its place."""
        self._create = create
        self._asked: list[_Standby] = []
        self._asked_at_s = self._ready_at_s = 0.0
        self._is_late = False  # so that those that have room are not awaited any more
        self._is_refused = False  # for the rest of this attempt
        self.failed_starts = FailedStarts("workers")

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def num_usable(self) -> int:
        """How many an attempt could begin with."""
        return len(self._usable)

    @property
    def _usable(self) -> list[_Standby]:
        return [one for one in self._asked if not one.is_dead and (self._is_late or one.node_id is not None)]

    def begin_attempt(self) -> None:
        self._is_refused = False

    def prepare(
        self, setup: TaskSetup, placement: Placement, *, count: int, away_from: Collection[str]
    ) -> int:
        """Asks for those missing of `count`; returns how many can begin, 0 while some are awaited."""
        self._drop([one for one in self._asked if one.is_dead], placement)
        if self._is_refused or self.failed_starts.are_too_many:
            return 0
        now_s = time.monotonic()
        for _ in range(count - len(self._asked)):
            room = placement.acquire(setup.resources, away_from=away_from)
            agent = self._create(setup, room.strategy)
            self._asked.append(_Standby.of(agent, setup, room, is_awaited=True))
            self._asked_at_s = self._ready_at_s = now_s
            self._is_late = False
        if self.num_usable < len(self._asked):
            if now_s - self._asked_at_s < _PREPARATION_S:
                self._ready_at_s = now_s
                return 0
            self._is_late = True
            self._drop([one for one in self._asked if placement.node_of(one.room) is None], placement)
        if now_s - self._ready_at_s > _UNUSED_S:  # the program saves nothing
            self._is_refused = True
            self.end(placement)
        return min(count, len(self._asked))

    def settle(self, placement: Placement, *, avoid: Collection[str]) -> None:
        """Drops agents that have died, or whose node is avoided or lost."""
        for one in list(self._asked):
            node_id = placement.node_of(one.room)
            if one.is_dead or (node_id is not None and (node_id in avoid or not is_node_there(node_id))):
                self._drop([one], placement)

    def take(self, task: TaskId, placement: Placement) -> Any:
        """Gives the task the room of one; returns its agent, or None without one."""
        if not (usable := self._usable):
            return None
        self._asked.remove(usable[0])
        placement.swap(task, usable[0].room)
        return usable[0].agent

    def end(self, placement: Placement | None) -> None:
        """Ends those that were asked for. Idempotent.

        Args:
          placement: What takes back their room; None where it ends too.
        """
        self._drop(list(self._asked), placement)

    def _drop(self, dropped: Collection[_Standby], placement: Placement | None) -> None:
        for one in dropped:
            self.failed_starts.count(one)
            self._asked.remove(one)
            ray.kill(one.agent)
            if placement is not None:
                placement.leave(one.room)


class FailedStarts:
    """Agents that have died before they were ready: where they cannot start, no more are asked for.

    Attributes:
      notes: Why no more are asked for.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0
        self.notes: tuple[str, ...] = ()

    @property
    def are_too_many(self) -> bool:
        return self._count >= _MOST_DEATHS

    def count(self, one: _Standby) -> None:
        if not one.is_dead or (_has_ended(one.ready) and one._id is not None):
            return
        self._count += 1
        if self._count == _MOST_DEATHS:
            try:
                ray.get(one.death, timeout=0)
            except RayError as error:
                last = str(error).strip().splitlines()[0]
                self.notes = (
                    f"no more {self._what} are asked for, as {_MOST_DEATHS} could not start: {last}",
                )


def _has_ended(ref: Any) -> bool:
    ready, _ = ray.wait([ref], timeout=0)
    return bool(ready)
