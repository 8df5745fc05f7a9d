"""Placement: where the tasks of one attempt have their room."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from raydist.errors import UnsupportedError
from raydist.planning.capacity import fulfils
from raydist.planning.plan import Plan
from raydist.runtime.cluster.inventory import is_node_alive, is_node_there, labels_of_nodes
from raydist.runtime.cluster.ray_internals import can_select_nodes, free_resources
from raydist.spec.job import JobSpec, Strategy
from raydist.spec.tasks import AnyTask, Resources, TaskId, TaskType

logger = logging.getLogger(__name__)

Bundle = dict[str, float]
Selector = dict[str, str]
_LEAST_MEMORY = 1.0  # a byte


@dataclass(frozen=True)
class Room:
    """One bundle of a placement group."""

    group: PlacementGroup
    index: int = 0

    @property
    def strategy(self) -> PlacementGroupSchedulingStrategy:
        """Ray's scheduling strategy for an actor in it."""
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.index)


class Placement:
    """A placement group with a bundle for each task that asks for anything; all of them, or none."""

    def __init__(
        self,
        group: PlacementGroup | None,
        *,
        bundles: Mapping[AnyTask, int],
        spread: TaskType | None,
        is_own: bool = True,
    ) -> None:
        self._group = group
        self._is_own = is_own
        self._bundles = dict(bundles)
        self._spread = spread
        self._moved: dict[AnyTask, Room] = {}
        self._spare: list[Room] = []  # of the group of all, which Ray takes no part of back
        self._more: list[PlacementGroup] = []  # of one bundle each

    @classmethod
    def request(
        cls, resources: Mapping[AnyTask, Resources], *, spread: TaskType | None, avoid: Sequence[str] = ()
    ) -> Placement:
        """Asks Ray for the room, and waits for nothing.

        Args:
          spread: The tasks of which as many as possible are to have a host of their own; None keeps all
            tasks together.
          avoid: Ids of nodes that no task which asks for anything may go to.
        """
        bundles = order_bundles(resources, spread=spread)
        labels = [dict(resources[task].labels) for task in bundles]
        indices = {task: index for index, task in enumerate(bundles)}
        if _Given.group is not None and _same(_Given.group.bundle_specs, list(bundles.values())):
            return cls(_Given.group, bundles=indices, spread=spread, is_own=False)
        strategy = strategy_of(spread)
        group = _request(list(bundles.values()), labels, strategy=strategy, avoid=avoid) if bundles else None
        return cls(group, bundles=indices, spread=spread)

    def is_ready(self) -> bool:
        """Whether Ray has found the room; asks Ray, and waits for nothing."""
        return self._group is None or bool(self._group.wait(timeout_seconds=0))

    def move(self, task: TaskId, asked: Resources, *, away_from: Collection[str]) -> bool:
        """Gives a task whose node does not answer any more room on another one, where there is some now.

        Ray itself finds new room for the bundle of a dead node too, a minute later, when it knows of it.

        Args:
          away_from: The ids of that node and of others to keep away from.

        Returns:
          Whether there was room.
        """
        if not _bundle(asked) or not nodes_with_room(asked, away_from=away_from):
            return False
        if (before := self._moved.pop(task, None)) is not None:
            self.give_back(before)
        self._moved[task] = self.request_more(asked, away_from=away_from)
        return True

    def add(self, task: TaskId, asked: Resources, *, away_from: Collection[str]) -> None:
        """Gives a task room beside that of the others, and waits for nothing."""
        self._moved[task] = self.acquire(asked, away_from=away_from)

    def drop(self, task: TaskId) -> None:
        """Gives the room of a task back, unless it is in the group of all: Ray takes no part of that back."""
        if (room := self._moved.pop(task, None)) is not None:
            self.give_back(room)

    def vacate(self, task: TaskId) -> None:
        """Does without the room of a task, which is given back or becomes spare."""
        room = self._room_of(task)
        self._moved.pop(task, None)
        self._bundles.pop(task, None)
        if room is not None:
            self.leave(room)

    def leave(self, room: Room) -> None:
        """Returns the room to Ray, or keeps it as spare if Ray cannot take it back."""
        if not self.give_back(room):
            self._spare.append(room)

    def rename(self, task: TaskId, name: TaskId) -> None:
        """Gives the room of a task to another one, which has none."""
        if (room := self._room_of(task)) is not None:
            self._moved[name] = room
        self._moved.pop(task, None)
        self._bundles.pop(task, None)

    def spare(self, *, away_from: Collection[str]) -> list[tuple[Room, str]]:
        """Returns vacated rooms with their nodes, where these are others: Ray moves those of a dead one."""
        return [
            (room, node_id)
            for room, node_id in [(room, self.node_of(room)) for room in self._spare]
            if node_id is not None and node_id not in away_from and is_node_there(node_id)
        ]

    def acquire(self, asked: Resources, *, away_from: Collection[str]) -> Room:
        """Takes spare room, or asks for some, and waits for nothing."""
        spare, _ = next(iter(self.spare(away_from=away_from)), (None, ""))
        if spare is None:
            return self.request_more(asked, away_from=away_from)
        self._spare.remove(spare)
        return spare

    def request_more(self, asked: Resources, *, away_from: Collection[str]) -> Room:
        """Asks for room beside that of the tasks, and waits for nothing.

        Args:
          away_from: Ids of nodes where it is not to be.
        """
        bundle = _bundle(asked) or {"memory": _LEAST_MEMORY}
        group = _request([bundle], [dict(asked.labels)], strategy="PACK", avoid=sorted(away_from))
        self._more.append(group)
        return Room(group)

    def swap(self, task: TaskId, room: Room) -> Room | None:
        """Gives a task that room; returns the one that it had, or None."""
        before = self._room_of(task)
        self._moved[task] = room
        return before

    def give_back(self, room: Room) -> bool:
        """Gives room back that `request_more` has asked for; returns whether it was such room."""
        if room.group not in self._more:
            return False
        self._more.remove(room.group)
        remove_placement_group(room.group)
        return True

    def strategy_for(self, task: AnyTask, *, node_id: str | None) -> Any:
        """Returns Ray's scheduling strategy for the task's actor.

        Args:
          node_id: Where the task was before, which a task without any resources goes back to.
        """
        room = self._room_of(task)
        if room is not None:
            return room.strategy
        if node_id is not None and is_node_alive(node_id):
            return NodeAffinitySchedulingStrategy(node_id, soft=False)
        return "SPREAD" if _is_of(task, self._spread) else "DEFAULT"

    def remove(self) -> None:
        more, self._more = self._more, []
        self._moved.clear()
        for group in more:
            remove_placement_group(group)
        if self._group is not None and self._is_own:
            remove_placement_group(self._group)

    def node_of(self, room: Room) -> str | None:
        """Returns the id of the node where Ray has it; None while Ray looks for one."""
        bundles = placement_group_table(room.group)["bundles_to_node_id"]
        return bundles.get(room.index) or None

    def node_of_task(self, task: AnyTask) -> str | None:
        """Returns the id of the node where the task has its room; None if Ray has found it none."""
        room = self._room_of(task)
        return None if room is None else self.node_of(room)

    def _room_of(self, task: AnyTask) -> Room | None:
        if self._group is not None and task in self._bundles:
            return self._moved.get(task, Room(self._group, self._bundles[task]))
        return self._moved.get(task)


class _Given:
    group: PlacementGroup | None = None


def use_own_group() -> None:
    """Has the runs of this process use the placement group that this actor is in.

    A run whose tasks need other bundles than the group has asks for one of its own.
    """
    _Given.group = get_current_placement_group()


def spread_of(plan: Plan) -> TaskType | None:
    """Returns the task type whose tasks are to be on hosts of their own; None keeps all tasks together."""
    return TaskType.PS if plan.strategy is Strategy.PARAMETER_SERVER else None


@dataclass(frozen=True, kw_only=True)
class GroupSpec:
    """The placement group that a run's tasks need, as Ray's `placement_group` takes it.

    Attributes:
      selectors: For each bundle the labels of its node.
    """

    bundles: tuple[Bundle, ...]
    strategy: str
    selectors: tuple[Selector, ...]


def group_of(plan: Plan) -> GroupSpec:
    """Returns the placement group that the plan's tasks need; nothing is started."""
    spread = spread_of(plan)
    resources: dict[AnyTask, Resources] = {task: plan.resources_of(task) for task in plan.tasks}
    resources |= {task: role.resources for role in plan.job.roles.values() for task in role.tasks}
    bundles = order_bundles(resources, spread=spread)
    selectors = tuple(dict(resources[task].labels) for task in bundles)
    return GroupSpec(bundles=tuple(bundles.values()), strategy=strategy_of(spread), selectors=selectors)


def strategy_of(spread: TaskType | None) -> str:
    """Returns Ray's strategy for the placement group of a run."""
    # PACK: the fewer hosts, the less of each all-reduce crosses the network.
    return "PACK" if spread is None else "SPREAD"


def _same(has: Sequence[Mapping[str, float]], asked: Sequence[Bundle]) -> bool:
    amounts = [{name: float(amount) for name, amount in bundle.items() if amount} for bundle in has]
    return amounts == [{name: float(amount) for name, amount in bundle.items() if amount} for bundle in asked]


def check_placeable(job: JobSpec) -> None:
    """Raises UnsupportedError for labels and standbys where this Ray cannot go by them."""
    if can_select_nodes():
        return
    if job.label_selector:
        raise UnsupportedError(
            f"label_selector is set, but Ray {ray.__version__} cannot place tasks by labels; install "
            "Ray 2.47 or later, or use --resources worker=KEY:N with a resource that only these hosts have"
        )
    if job.standby:
        raise UnsupportedError(
            f"standby is {job.standby}, but Ray {ray.__version__} cannot keep it away from the tasks' hosts; "
            "install Ray 2.47 or later, or leave --standby out"
        )


def order_bundles(
    resources: Mapping[AnyTask, Resources], *, spread: TaskType | None
) -> dict[AnyTask, Bundle]:
    """Returns the bundles in their order, those to be spread at the front; none for tasks without resources.

    For SPREAD, Ray 2.60 takes each bundle to an unused node while there is one that fits, then to the used
    node with the most room. It begins with those that have the most GPUs, then custom resources, memory,
    CPUs; of equal ones it keeps the order, up to 16 (bundle_scheduling_policy.cc, a std::sort). So a byte
    of memory brings the spread ones to the front. They do not get it where others need more: a large
    bundle that comes last may not fit any more, and Ray would never try another order. There they go
    where the others have left the most room.
    """
    most_cpus = max((asked.num_cpus for asked in resources.values()), default=0.0)
    first: dict[AnyTask, Bundle] = {}
    rest: dict[AnyTask, Bundle] = {}
    for task, asked in resources.items():
        bundle = _bundle(asked)
        if _is_of(task, spread):
            # Also for those that ask for nothing: without a bundle Ray's own SPREAD would not do, as each
            # node that Ray asks, by chance, where to start one counts round for itself.
            if not bundle or asked.num_cpus == most_cpus:
                bundle["memory"] = bundle.get("memory", 0.0) + _LEAST_MEMORY
            first[task] = bundle
        elif bundle:
            rest[task] = bundle
    return {**first, **rest}


def actor_options(resources: Resources, place: Any) -> dict[str, Any]:
    """Returns Ray's options of an actor that is never restarted, but for its number of GPUs."""
    own = ("CPU", "GPU", "memory")
    others = {name: amount for name, amount in resources.amounts.items() if name not in own}
    return {
        "num_cpus": resources.num_cpus,
        "memory": resources.memory_bytes or None,
        "resources": others or None,
        "scheduling_strategy": place,
        "max_restarts": 0,
        "max_task_retries": 0,
    }


def _is_of(task: AnyTask, task_type: TaskType | None) -> bool:
    return isinstance(task, TaskId) and task.task_type is task_type


def _request(
    bundles: list[Bundle], labels: Sequence[Selector], *, strategy: str, avoid: Sequence[str]
) -> PlacementGroup:
    options: dict[str, Any] = {}
    away = {"ray.io/node-id": f"!in({','.join(avoid)})"} if avoid else {}
    if (avoid or any(labels)) and can_select_nodes():
        options["bundle_label_selector"] = [{**each, **away} for each in labels]
    elif avoid:
        logger.warning("this Ray cannot keep tasks away from nodes: %s", ", ".join(avoid))
    group: PlacementGroup = placement_group(bundles, strategy=strategy, **options)
    return group


def nodes_with_room(asked: Resources, *, away_from: Collection[str]) -> list[str]:
    """Returns the ids of other nodes than these that have room for such a task now."""
    labels, bundle = labels_of_nodes(), _bundle(asked)
    return [
        node_id
        for node_id, amounts in free_resources().items()
        if node_id not in away_from
        and fulfils(labels.get(node_id, {}), asked.labels)
        and _holds(amounts, bundle)
    ]


def _holds(free: Mapping[str, float], bundle: Bundle) -> bool:
    return all(free.get(name, 0.0) >= amount for name, amount in bundle.items())


def _bundle(resources: Resources) -> Bundle:
    amounts = resources.amounts
    # Labels are those of a bundle, so a task that asks for nothing else needs one too.
    return amounts if amounts or not resources.labels else {"memory": _LEAST_MEMORY}
