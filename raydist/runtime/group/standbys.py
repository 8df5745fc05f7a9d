"""Standbys: agents that wait on other hosts, with TensorFlow imported, for the task of a lost host."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError

from raydist.runtime.cluster.placement import Placement, Room
from raydist.runtime.task.greeting import TaskSetup
from raydist.spec.tasks import Resources, TaskId


@dataclass(frozen=True)
class _Standby:
    """One that was asked for.

    Attributes:
      ready: The reference to its node's id, which can be had once it has room and imports.
      death: The reference to a call that only the agent's death ends.
    """

    agent: Any
    room: Room
    resources: Resources
    ready: Any
    death: Any

    @property
    def is_dead(self) -> bool:
        return _has_ended(self.death)

    @property
    def node_id(self) -> str | None:
        """The id of its node; None while it is not ready."""
        if self.is_dead or not _has_ended(self.ready):
            return None
        try:
            return str(ray.get(self.ready))
        except RayError:  # it has died just now
            return None


class Standbys:
    """Waits for nothing: a standby serves once it is there."""

    def __init__(self, count: int, *, create: Callable[[TaskSetup, Any], Any]) -> None:
        """Takes how many there are to be, and what asks Ray for an agent by its set-up and its place."""
        self._count = count
        self._create = create
        self._waiting: list[_Standby] = []
        self._left: list[Room] = []  # by the tasks that have taken a standby's

    def complete(self, setup: TaskSetup, placement: Placement, *, away_from: Collection[str]) -> None:
        """Asks for those that are missing, for tasks like that one, on other nodes than these."""
        while len(self._waiting) < self._count:
            room = self._left.pop() if self._left else placement.more(setup.resources, away_from=away_from)
            agent = self._create(setup, room.strategy)
            ready, death = agent.stand_by.remote(setup), agent.linger.remote()
            self._waiting.append(_Standby(agent, room, setup.resources, ready, death))

    def discard(
        self, placement: Placement, *, avoid: Collection[str] = (), is_room_needed: bool = False
    ) -> None:
        """Does without those that have ended, or are on nodes that are to be avoided.

        Args:
          is_room_needed: Whether those that still wait for room are not to, as a task does.
        """
        for one in list(self._waiting):
            if one.is_dead or one.node_id in avoid or (is_room_needed and one.node_id is None):
                self._waiting.remove(one)
                ray.kill(one.agent)
                if not placement.give_back(one.room):
                    self._left.append(one.room)

    def take(self, task: TaskId, resources: Resources, placement: Placement) -> Any:
        """Gives the task the room of a standby, and returns its agent; None where none is ready."""
        fitting = (one for one in self._waiting if one.resources == resources and one.node_id is not None)
        one = next(fitting, None)
        if one is None:
            return None
        self._waiting.remove(one)
        left = placement.swap(task, one.room)
        if left is not None:
            self._left.append(left)
        return one.agent

    def kill(self) -> None:
        """Ends those that wait; their room is the placement's to give back. Idempotent."""
        while self._waiting:
            ray.kill(self._waiting.pop().agent)
        self._left.clear()


def _has_ended(ref: Any) -> bool:
    ready, _ = ray.wait([ref], timeout=0)
    return bool(ready)
