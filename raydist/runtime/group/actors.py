"""ActorSet: the agents of a run's tasks with their placement group, and how they end."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from raydist.outcome.status import TaskMessage
from raydist.planning.fitting import resized
from raydist.planning.plan import Plan
from raydist.runtime.cluster import ray_internals
from raydist.runtime.cluster.datasets import Datasets, DatasetSplits
from raydist.runtime.cluster.inventory import is_node_alive, is_node_there
from raydist.runtime.cluster.placement import Placement, actor_options, spread_of
from raydist.runtime.cluster.runtime_env import runtime_env_of
from raydist.runtime.group.extra_roles import ExtraActors
from raydist.runtime.group.ray_failures import answers_in_time
from raydist.runtime.group.remains import Remains, Remnant
from raydist.runtime.group.standbys import Growth, Standbys
from raydist.runtime.host.address import accepts_tcp, split_address
from raydist.runtime.host.salvage import wait_until_gone
from raydist.runtime.task.actor import CONCURRENCY, News, TaskActor
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.runtime.task.role_actor import RoleSetup
from raydist.spec.tasks import AnyTask, Resources, TaskId, TaskType

logger = logging.getLogger(__name__)

# How long agents may take to end their processes and to store what these have left, before they are killed.
_END_S = 20.0
_KILL_TIMEOUT_S = 10.0
# How long agents may take to pass on what was commanded before the stop.
_COMMANDS_S = 1.0
_MOST_COMMANDS = 32
# After this a dead Ray is left alone.
_STOP_TIMEOUT_S = 45.0
# How often it is looked whether an embedded Ray still runs, and how long its host has to answer.
_LOOK_S = 0.5


class ActorSet:
    """Only asks and ends; what the agents answer is the group's to wait for.

    The agents of an attempt can be those of the next.

    Attributes:
      extras: The actors of the extra roles, which share the placement group.
      last_news: Once they are stopped, the last news of each task.
      has_kept: Whether the chief's agent may have a state of an attempt before to continue from.
    """

    def __init__(self, plan: Plan, *, is_driver_in_cluster: bool) -> None:
        """Takes the plan that the agents are for."""
        self._plan = plan
        self._setups: dict[TaskId, TaskSetup] = {}
        self._runtime_env = runtime_env_of(plan.job)
        # The driver's node; None outside the cluster.
        self.home = ray.get_runtime_context().get_node_id() if is_driver_in_cluster else None
        self._gcs_address = ray.get_runtime_context().gcs_address
        self._placement: Placement | None = None
        self._splits = DatasetSplits({})
        self._actor_class: Any = ray.remote(TaskActor)  # once: each such class is shipped to the workers
        self._remains = Remains(home=self.home)
        self._is_stop_begun = False
        self._commands: list[Any] = []
        self.extras = ExtraActors(())
        self.handles: dict[TaskId, Any] = {}
        self.last_news: tuple[News, ...] = ()
        self.has_kept = False
        self._notes: tuple[str, ...] = ()
        self._standbys = Standbys(plan.job.standby, create=self._create_actor)
        self._growth = Growth(create=self._create_actor)
        self._nodes: dict[TaskId, str] = {}  # where the tasks of the attempt before were
        self._told_to_leave: frozenset[TaskId] = frozenset()
        self._is_stuck = False  # whether a thread still stops it
        # What their agents clear away, unless they are killed first.
        self._replaced: dict[TaskId, Remnant] = {}
        self._unheard: list[int] = []  # processes of this host that were killed before they sent a hello

    def adapt_to(self, plan: Plan) -> bool:
        """Has the agents be those of another plan, with a standby or other room for those of a lost host.

        Returns:
          Whether that is possible; they are of no use otherwise.
        """
        own, placement = self._plan, self._placement
        if placement is None or not self._is_like(plan):
            return False
        avoided = self._avoided(plan)
        if plan.is_elastic:
            self._resize(plan, placement, avoided)
        # The room of the extra roles, too, may be on a host that is avoided from now on.
        roles = {placement.node_of_task(role) for role in self.extras.resources}
        if plan.job.roles and (set(plan.avoid) - set(own.avoid) or roles & avoided):
            return False
        for task in [task for task in self.handles if self._nodes.get(task) in avoided]:
            ray.kill(self.handles.pop(task))
        self._plan = plan
        if plan.num_workers >= plan.job.workers.maximum:
            self._growth.end(placement)
        self._standbys.discard(placement, avoid=avoided)
        missing = [task for task in self._setups if task not in self.handles]
        displaced = [task for task in missing if self._is_displaced(task, placement, avoided)]
        left = [task for task in displaced if not self._take_standby(self._setups[task], placement)]
        self._standbys.discard(placement, is_room_needed=bool(left))
        left = [task for task in left if placement.node_of_task(task) in avoided]  # Ray moves the others
        if len(left) > 1:  # each would be shown the same free room
            return False
        return all(placement.move(task, self._setups[task].resources, away_from=avoided) for task in left)

    def _is_like(self, plan: Plan) -> bool:
        """Whether a plan needs agents like these, though maybe more or fewer of them."""
        own = resized(self._plan, plan.num_workers)
        same = (own.tasks, own.all_roles, own.strategy) == (plan.tasks, plan.all_roles, plan.strategy)
        return same and not self._is_stuck

    def num_workers_for(self, plan: Plan) -> int:
        """Returns how many workers of an elastic plan have room already; 0 where its agents are others."""
        placement = self._placement
        if placement is None or not self._is_like(plan):
            return 0
        avoided = self._avoided(plan)
        self._growth.settle(placement, avoid=avoided)
        num_spare = len(placement.spare(away_from=avoided))
        return len(self._staying(placement, avoided)) + num_spare + self._growth.num_usable

    def _avoided(self, plan: Plan) -> set[str]:
        """Returns the ids of the nodes that the agents of a plan are not to be on."""
        return {*plan.avoid, *(ray_internals.draining_nodes() if self.home else ())}

    def grow(self, plan: Plan, num_more: int) -> int:
        """Asks for agents of so many more workers than `plan` has; returns for how many there is one.

        0 while others are awaited.
        """
        try:
            if num_more <= 0 or self._placement is None:
                self._growth.end(self._placement)
                return 0
            setup, avoided = self._replaceable(), self._avoided(plan)
            return self._growth.prepare(setup, self._placement, count=num_more, away_from=avoided)
        except (RayError, ConnectionError) as error:  # the run does not need them, and asks again
            logger.debug("no more workers could be asked for: %s", error)
            return 0

    def num_spare(self, plan: Plan) -> int:
        """Returns for how many more workers there is room that others have left, or that was asked for."""
        if self._placement is None:
            return 0
        return len(self._placement.spare(away_from=self._avoided(plan))) + len(self._growth)

    def _staying(self, placement: Placement, avoided: Collection[str]) -> list[TaskId]:
        """Returns the workers that go back to where they were, by their index."""

        def has_place(task: TaskId) -> bool:
            node_id = self._nodes.get(task) or placement.node_of_task(task)
            return node_id not in avoided and (
                task in self.handles or node_id is None or is_node_there(node_id)
            )

        return [task for task in self._setups if task.task_type is TaskType.WORKER and has_place(task)]

    def _resize(self, plan: Plan, placement: Placement, avoided: Collection[str]) -> None:
        """Gives each worker of an elastic plan an agent or room; the last agents fill the gaps."""
        staying = self._staying(placement, avoided)
        moving = [task for task in staying if task not in plan.tasks]
        for task in [one for one in self._setups if one.task_type is TaskType.WORKER and one not in staying]:
            if (agent := self.handles.pop(task, None)) is not None:  # its host is to be avoided
                ray.kill(agent)
            placement.vacate(task)
            self._nodes.pop(task, None)
        for task in plan.tasks:
            if task in staying or task.task_type is not TaskType.WORKER:
                continue
            self._setups[task] = dataclasses.replace(self._replaceable(), task=task)
            if moving:
                before = moving.pop()
                placement.rename(before, task)
                for known in (self.handles, self._nodes):
                    if before in known:
                        known[task] = known.pop(before)
            elif (agent := self._growth.take(task, placement)) is not None:
                self.handles[task] = agent
            else:
                placement.add(task, self._setups[task].resources, away_from=avoided)
        for task in set(self._setups).difference(plan.tasks):
            del self._setups[task]

    def stand_by(self, hellos: Mapping[TaskId, Hello], *, away_from: Collection[str] = ()) -> None:
        """Asks for a standby where one is missing or has ended, on another node than those of the tasks."""
        if not self._plan.job.standby or self._placement is None:
            return
        nodes = {*self._plan.avoid, *away_from, *(hello.node_id for hello in hellos.values())}
        try:
            self._standbys.discard(self._placement, avoid=nodes)
            self._standbys.complete(self._replaceable(), self._placement, away_from=nodes)
        except (RayError, ConnectionError) as error:  # the run does not need them, and asks again
            logger.debug("no standby could be asked for: %s", error)

    def _is_displaced(self, task: TaskId, placement: Placement, avoided: Collection[str]) -> bool:
        """Whether a task cannot, or was told not to, go back to where it was, or was to be."""
        if task in self._told_to_leave:
            return True
        node_id = self._nodes.get(task) or placement.node_of_task(task)
        return node_id is not None and (node_id in avoided or not is_node_alive(node_id))

    def _replaceable(self) -> TaskSetup:
        """The set-up that a standby prepares for: of a worker, of which there are mostly the most."""
        workers = [setup for task, setup in self._setups.items() if task.task_type is TaskType.WORKER]
        return (workers or [*self._setups.values()])[-1]

    def _take_standby(self, setup: TaskSetup, placement: Placement) -> bool:
        """Gives a task of a lost host a standby's agent; returns whether one was ready."""
        if not self._plan.job.standby:
            return False
        agent = self._standbys.take(setup.task, setup.resources, placement)
        if agent is not None:
            self.handles[setup.task] = agent
        why = "had to be left" if setup.task in self._told_to_leave else "was lost"
        sentence = "a standby has taken its place" if agent is not None else "no standby was ready for it"
        self._notes = (*self._notes, f"the host of {setup.task} {why}, and {sentence}")
        return agent is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about standbys."""
        starts = (self._standbys.failed_starts, self._growth.failed_starts)
        return (*self._notes, *(note for each in starts for note in each.notes))

    def start(self, setups: Sequence[TaskSetup], *, roles: Sequence[RoleSetup] = ()) -> None:
        """Asks Ray for the placement group and every actor that is not there, and waits for none of them.

        Args:
          roles: The tasks of the extra roles.
        """
        self._setups = {setup.task: setup for setup in setups}
        self._growth.begin_attempt()
        self._told_to_leave = frozenset()
        self._is_stop_begun, self.last_news = False, ()
        self._replaced, self._unheard = {}, []
        self.extras = ExtraActors(roles)
        resources: dict[AnyTask, Resources] = {setup.task: setup.resources for setup in setups}
        resources |= self.extras.resources
        if self._placement is None:
            spread = spread_of(self._plan)
            self._placement = Placement.request(resources, spread=spread, avoid=self._plan.avoid)
        for setup in setups:
            if setup.task not in self.handles:
                self.handles[setup.task] = self._create_actor(setup, self._place_of(setup.task))
        self.extras.create(self._placement, runtime_env=self._runtime_env)

    def add(self, plan: Plan, setups: Sequence[TaskSetup]) -> None:
        """Asks Ray for the actors of tasks that a larger plan has besides, and for their room."""
        assert self._placement is not None
        self._plan = plan
        for setup in setups:
            self._setups[setup.task] = setup
            self._placement.add(setup.task, setup.resources, away_from=plan.avoid)
            self.handles[setup.task] = self._create_actor(setup, self._place_of(setup.task))

    def remove(self, plan: Plan, task: TaskId, dead: Hello | None) -> None:
        """Kills the agent of a task that `plan` does without, and gives back what room Ray takes back.

        Args:
          dead: The hello of its process; None where it sent none.
        """
        assert self._placement is not None
        self._plan = plan
        self._remains.leave(Remnant(setup=self._setups.pop(task), hello=dead))
        ray.kill(self.handles.pop(task))
        self._remains.gather(task)
        self._placement.drop(task)

    def home_addresses(self) -> set[str]:
        """Returns the address of the driver's host; none outside the cluster."""
        return {ray.util.get_node_ip_address()} if self.home else set()  # type: ignore[no-untyped-call]

    def begin(self, task: TaskId) -> Any:
        """Has a task's agent begin with a process; returns its hello, to be waited for."""
        return self.handles[task].begin.remote(self._setups[task])

    def renew(
        self,
        task: TaskId,
        dead: Hello | None,
        *,
        address: str | None,
        is_agent_gone: bool,
        is_host_gone: bool,
    ) -> Any:
        """Asks for a process in the place of a dead one; returns its hello, to be waited for.

        Args:
          dead: The hello of the dead one; None where it died before.
          address: The one that its peers connect to; None where they need none.
          is_agent_gone: Whether it has no agent any more, so that Ray is asked for another one.
          is_host_gone: Whether the host does not answer any more, so that another one is looked for.
        """
        before = self._setups[task]
        self._setups[task] = before.for_next_life(address=address)
        if not is_agent_gone:
            self._replaced[task] = Remnant(setup=before, hello=dead)
        else:
            assert self._placement is not None
            killed = self.handles.pop(task)
            if is_host_gone and dead is not None:
                if not self._take_standby(self._setups[task], self._placement):
                    self._standbys.discard(self._placement, is_room_needed=True)
                    self._placement.move(task, before.resources, away_from=[dead.node_id])
            else:
                self._remains.leave(Remnant(setup=before, hello=dead))
            if task not in self.handles:
                place = self._place_of(task, node_id=dead.node_id if dead else None)
                self.handles[task] = self._create_actor(self._setups[task], place)
            ray.kill(killed)  # one that Ray has only lost sight of must not serve beside the new one
        return self.begin(task)

    def gather_remains(self, task: TaskId) -> None:
        """Begins to store the log's end of that task's dead processes, and to delete their folders."""
        self._remains.gather(task)

    def is_placed(self) -> bool:
        """Whether Ray has found room for all tasks; asks Ray, and waits for nothing."""
        return self._placement is not None and self._placement.is_ready()

    def split(self, datasets: Datasets, hellos: Mapping[TaskId, Hello]) -> dict[TaskId, dict[str, Any]]:
        """Begins to stream the datasets to the workers; returns each worker's share of each."""
        workers = [task for task in self._setups if task.task_type is TaskType.WORKER]  # by their index
        self._splits = DatasetSplits.start(datasets, node_ids=[hellos[task].node_id for task in workers])
        return {task: self._splits.share_of(task.index) for task in workers}

    def command(self, message: TaskMessage, task: TaskId) -> None:
        ref = self.handles[task].command.remote(message)
        self._commands = [*self._commands[-_MOST_COMMANDS:], ref]

    def stop(
        self,
        hellos: Mapping[TaskId, Hello],
        lost: Collection[TaskId],
        away: Collection[TaskId] = (),
        leaving: Collection[TaskId] = (),
        *,
        for_another: bool = False,
    ) -> None:
        """Ends every process: asks the agents, and kills and salvages where one does not answer.

        What Ctrl-C has cut off and is called again waits for no process to end by itself.

        Args:
          lost: Tasks whose agents are gone.
          away: Tasks on hosts that do not answer. They end by themselves, and are not waited for.
          leaving: Tasks that were told to leave, whose agents are of no use to another attempt.
          for_another: Leaves the agents and their room to another attempt, until `release`.
        """
        departed: set[TaskId] = set()
        staying = set(self.handles).difference(leaving) if for_another else set()
        self._told_to_leave = frozenset(leaving)
        gone, extras, splits = {*lost, *away}, self.extras, self._splits

        def stop_by_ray() -> None:
            if not self._is_stop_begun:
                self._is_stop_begun = True
                ending = [task for task in hellos if task not in gone]
                departed.update(self._end_lives(ending, staying))
            unheard = [self.handles[task] for task in self.handles if task not in hellos]
            self._kill_tasks([task for task in self.handles if task not in staying & departed])
            self._unheard += self._pids_here(unheard)
            self._nodes = {task: hello.node_id for task, hello in hellos.items()}
            extras.stop()  # the tasks may have needed them to their end
            self._remains.gather_there(self._remnants(hellos, {*departed, *away}))
            splits.stop()
            if not for_another:
                self._standbys.kill()
                self._growth.end(None)
                self._remove_placement()

        # Any call to a Ray that was shut down would start a new one.
        by_ray = ray.is_initialized() and self._call_ray(stop_by_ray)
        self._is_stuck = not by_ray
        for pid in self._unheard:  # one that still lives may be about to make its folder
            wait_until_gone(pid)
        self._remains.gather_here(self._remnants(hellos, departed), by_ray=by_ray)
        for task, hello in hellos.items():
            if hello.node_id == self.home and task not in staying & departed:
                wait_until_gone(hello.pid)
        self.extras.stop_here(self.home)

    def release(self) -> None:
        """Gives back what `stop` has left to another attempt. Idempotent."""

        def release() -> None:
            self._standbys.kill()
            self._growth.end(None)
            self._kill_tasks(list(self.handles))
            self._remove_placement()

        if (self.handles or self._placement) and ray.is_initialized():
            self._call_ray(release)

    def _call_ray(self, call: Callable[[], None]) -> bool:
        """Returns whether Ray has done it; a Ray that has died may not answer."""
        # In a thread, because calls to a Ray that has died do not return.

        def stop() -> None:
            ray_internals.forbid_auto_init()  # the thread may outlive the connection
            try:
                call()
            except RayError as error:
                # A Ray that has died is being shut down.
                level = logging.WARNING if ray.is_initialized() else logging.DEBUG
                logger.log(level, "Ray failed while the tasks were stopped: %s", error)

        thread = threading.Thread(target=stop, name="raydist-stop", daemon=True)
        thread.start()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(_LOOK_S)
            # A SIGTERM to all processes of a batch job ends an embedded Ray too, which does not come back.
            if ray_internals.is_started_here() and not _is_up(self._gcs_address):
                logger.debug("Ray ended before the tasks were stopped")
                return False
        if thread.is_alive():
            logger.warning("Ray did not answer while the tasks were stopped")
        return not thread.is_alive()

    def _remnants(self, hellos: Mapping[TaskId, Hello], departed: Collection[TaskId]) -> list[Remnant]:
        """Returns the newest process, and the one before it, of each task whose agent has not cleared up."""
        newest = [Remnant(setup=setup, hello=hellos.get(task)) for task, setup in self._setups.items()]
        return [each for each in (*self._replaced.values(), *newest) if each.setup.task not in departed]

    def _end_lives(self, tasks: list[TaskId], staying: Collection[TaskId]) -> list[TaskId]:
        """Has the agents end their processes; returns the tasks of those that have.

        Args:
          staying: The tasks whose agents are to have another process.
        """
        commands, self._commands = self._commands, []
        if commands:  # an agent takes several calls at once, and these came before
            ray.wait(commands, num_returns=len(commands), timeout=_COMMANDS_S)
        ends = {self.handles[task].end.remote(task in staying): task for task in tasks}
        answers = answers_in_time(ends, timeout_s=_END_S)
        self.last_news = tuple(answers.values())
        return list(answers)

    def _kill_tasks(self, tasks: Sequence[TaskId]) -> None:
        handles = [self.handles[task] for task in tasks if task in self.handles]
        deaths = [handle.linger.remote() for handle in handles]
        for handle in handles:
            ray.kill(handle)
        if deaths:
            ray.wait(deaths, num_returns=len(deaths), timeout=_KILL_TIMEOUT_S)
        for task in tasks:
            self.handles.pop(task, None)

    def _pids_here(self, agents: Iterable[Any]) -> list[int]:
        if self.home is None:
            return []
        found = (ray_internals.pid_of(agent, node_id=self.home) for agent in agents)
        return [pid for pid in found if pid is not None]

    def _remove_placement(self) -> None:
        if self._placement is not None:
            self._placement.remove()
            self._placement = None

    def _place_of(self, task: TaskId, *, node_id: str | None = None) -> Any:
        assert self._placement is not None
        return self._placement.strategy_for(task, node_id=node_id)

    def _create_actor(self, setup: TaskSetup, place: Any) -> Any:
        """Asks for one actor. No runtime_env at all is best: its set-up takes a second."""
        actor = self._actor_class.options(
            **actor_options(setup.resources, place),
            num_gpus=setup.resources.num_gpus,
            max_concurrency=CONCURRENCY,
            runtime_env=self._runtime_env,
        )
        return actor.remote()


def _is_up(gcs_address: str) -> bool:
    host, port = split_address(gcs_address)
    return accepts_tcp(host, port, timeout_s=_LOOK_S)
