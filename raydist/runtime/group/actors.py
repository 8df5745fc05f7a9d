"""ActorSet: the actors of one attempt with their placement group and mailbox, and how they end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydist.planning.assignment import TaskAssignment
from raydist.runtime.cluster import ray_internals
from raydist.runtime.cluster.datasets import Datasets, DatasetSplits
from raydist.runtime.cluster.placement import Placement
from raydist.runtime.group.extra_roles import ExtraActors
from raydist.runtime.group.mailbox import Departed, Mailbox
from raydist.runtime.group.remains import Remains, Remnant
from raydist.runtime.host.address import accepts_tcp, split_address
from raydist.runtime.host.post_mortem import Finding
from raydist.runtime.host.salvage import wait_until_gone
from raydist.runtime.task.actor import TaskActor
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.runtime.task.role_actor import RoleSetup
from raydist.spec.extra_roles.role import AnyTask
from raydist.spec.status import Command, TaskStatus
from raydist.spec.tasks import Resources, TaskId, TaskType

logger = logging.getLogger(__name__)

# How long tasks may take to end by themselves before they are killed.
_PATIENCE_S = 1.0
_KILL_TIMEOUT_S = 10.0
# After this a dead Ray is left alone.
_STOP_TIMEOUT_S = 30.0
# How often it is looked whether an embedded Ray still runs, and how long its host has to answer.
_LOOK_S = 0.5
# Each task keeps one call open at the mailbox.
_MAX_EXCHANGES = 4096

# What a task's `run` takes: its assignment, the code, and the mailbox's name.
RunArguments = tuple[TaskAssignment, Any, str]


class ActorSet:
    """Only asks and ends; what the actors answer is the group's to wait for.

    Attributes:
      extras: The actors of the extra roles, which share the placement group.
      last_statuses: Once they are stopped, the newest status of each task.
    """

    def __init__(
        self,
        setups: Sequence[TaskSetup],
        *,
        extras: ExtraActors,
        placement: Placement,
        runtime_env: Mapping[str, Any] | None,
        home: str | None,
    ) -> None:
        self.extras = extras
        self._setups = {setup.task: setup for setup in setups}
        self._placement = placement
        self._runtime_env = runtime_env
        self.home = home  # the driver's node; None outside the cluster
        self._gcs_address = ray.get_runtime_context().gcs_address
        self._mailbox: Any = None
        self._splits = DatasetSplits({})
        self._actor_class = ray.remote(TaskActor)  # once: each such class is shipped to the workers
        self._remains = Remains(home=home)
        self.mailbox_name = f"raydist-mailbox-{uuid.uuid4().hex}"
        self.handles: dict[TaskId, Any] = {}
        self.last_statuses: tuple[TaskStatus, ...] = ()

    @classmethod
    def create(
        cls,
        setups: Sequence[TaskSetup],
        *,
        roles: Sequence[RoleSetup] = (),
        spread: TaskType | None,
        avoid: Sequence[str] = (),
        runtime_env: Mapping[str, Any] | None = None,
        is_driver_in_cluster: bool,
    ) -> ActorSet:
        """Asks Ray for the placement group and every actor at once, and waits for none of them.

        Args:
          roles: The tasks of the extra roles.
          spread, avoid: As for `Placement.request`.
          runtime_env: Ray's runtime environment of every task; None asks for none.
        """
        extras = ExtraActors(roles)
        resources: dict[AnyTask, Resources] = {setup.task: setup.resources for setup in setups}
        resources |= extras.resources
        placement = Placement.request(resources, spread=spread, avoid=avoid)
        home = ray.get_runtime_context().get_node_id() if is_driver_in_cluster else None
        actors = cls(setups, extras=extras, placement=placement, runtime_env=runtime_env, home=home)
        with contextlib.ExitStack() as on_error:
            on_error.callback(actors.stop, {}, ())
            for setup in setups:
                actors.handles[setup.task] = actors._create_actor(setup, node_id=None)
            extras.create(placement, runtime_env=runtime_env, other_amounts=_other_amounts)
            on_error.pop_all()
        return actors

    def home_addresses(self) -> set[str]:
        """Returns the address of the driver's host; none outside the cluster."""
        return {ray.util.get_node_ip_address()} if self.home else set()  # type: ignore[no-untyped-call]

    def greet(self) -> dict[Any, TaskId]:
        """Has every task say hello; returns the hellos, to be waited for."""
        return {handle.hello.remote(self._setups[task]): task for task, handle in self.handles.items()}

    def warm_up(self) -> list[Any]:
        """Has every task import TensorFlow, ahead of `run`, so that the import hides all until then."""
        return [handle.warm_up.remote() for handle in self.handles.values()]

    def replace(
        self,
        task: TaskId,
        dead: Hello | None,
        *,
        address: str | None,
        run: RunArguments,
        is_host_gone: bool = False,
    ) -> tuple[Any, Any]:
        """Asks for an actor in the place of a dead one; returns its hello and its run, to be waited for.

        Everything is asked for at once: no answer is worth a round trip while the task is missed.

        Args:
          dead: The hello of the dead one; None where it died before.
          address: The one that its peers connect to; None where they need none.
          is_host_gone: Whether the host does not answer any more, so that another one is looked for.
        """
        killed, before = self.handles[task], self._setups[task]
        if is_host_gone and dead is not None:
            self._placement.move(task, before.resources, away_from=dead.node_id)
        else:
            self._remains.leave(Remnant(setup=before, hello=dead))
        setup = self._setups[task] = before.for_next_life(address=address)
        actor = self.handles[task] = self._create_actor(setup, node_id=dead.node_id if dead else None)
        hello = actor.hello.remote(setup)
        actor.warm_up.remote()
        result = actor.run.remote(*run)
        if self._mailbox is not None:
            self._mailbox.replace.remote(task, incarnation=setup.incarnation)
        ray.kill(killed)  # one that Ray has only lost sight of must not serve beside the new one
        return hello, result

    def gather_remains(self, task: TaskId) -> None:
        """Begins to store the log's end of that task's dead processes, and to delete their folders."""
        self._remains.gather(task)

    def findings(self) -> Mapping[tuple[str, int], Finding]:
        """Returns what was found on other hosts of processes there, by node and pid."""
        return self._remains.findings

    def is_placed(self) -> bool:
        """Whether Ray has found room for all tasks; asks Ray, and waits for nothing."""
        return self._placement.is_ready()

    def split(self, datasets: Datasets, hellos: Mapping[TaskId, Hello]) -> dict[TaskId, dict[str, Any]]:
        """Begins to stream the datasets to the workers; returns each worker's share of each."""
        workers = [task for task in self._setups if task.task_type is TaskType.WORKER]  # by their index
        self._splits = DatasetSplits.start(datasets, node_ids=[hellos[task].node_id for task in workers])
        return {task: self._splits.share_of(task.index) for task in workers}

    def open_mailbox(self) -> None:
        """Starts the mailbox, on the driver's host: it shares the driver's fate. Tasks find it by name."""
        # Not `soft`: Ray 2.60 may then place it anywhere.
        where = NodeAffinitySchedulingStrategy(self.home, soft=False) if self.home else "DEFAULT"
        self._mailbox = (
            ray.remote(Mailbox)
            .options(
                name=self.mailbox_name,
                num_cpus=0,
                max_concurrency=_MAX_EXCHANGES,
                scheduling_strategy=where,
            )
            .remote()
        )

    def command(self, command: Command, tasks: Sequence[TaskId]) -> None:
        if self._mailbox is not None:
            self._mailbox.command.remote(command, list(tasks))

    def wait_news(self, since: int, *, timeout_s: float) -> Any:
        return self._mailbox.wait_news.remote(since, timeout_s=timeout_s)

    def stop(
        self, hellos: Mapping[TaskId, Hello], lost: Collection[TaskId], away: Collection[TaskId] = ()
    ) -> None:
        """Ends everything: asks those that are not lost, waits, kills, salvages.

        Args:
          away: Tasks on hosts that do not answer. They end by themselves, and are not waited for.
        """
        departed: list[TaskId] = []
        # Any call to a Ray that was shut down would start a new one.
        by_ray = ray.is_initialized() and self._call_ray(hellos, {*lost, *away}, departed, away=away)
        self._stop_here(hellos, departed, by_ray=by_ray)

    def _call_ray(
        self,
        hellos: Mapping[TaskId, Hello],
        lost: Collection[TaskId],
        departed: list[TaskId],
        *,
        away: Collection[TaskId],
    ) -> bool:
        """Returns whether Ray has done it; a Ray that has died may not answer."""
        # In a thread, because calls to a Ray that has died do not return.

        def stop() -> None:
            ray_internals.forbid_auto_init()  # the thread may outlive the connection
            try:
                self._stop_by_ray(hellos, lost, departed, away)
            except RayError as error:
                # One that has died is shut down meanwhile.
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

    def _stop_by_ray(
        self,
        hellos: Mapping[TaskId, Hello],
        lost: Collection[TaskId],
        departed: list[TaskId],
        away: Collection[TaskId],
    ) -> None:
        departed += self._ask_to_depart([task for task in hellos if task not in lost])
        self._kill_tasks()
        self.extras.stop()  # the tasks may have needed them to their end
        self._remains.gather_there(self._remnants(hellos, {*departed, *away}))
        self._release()

    def _stop_here(
        self, hellos: Mapping[TaskId, Hello], departed: Collection[TaskId], *, by_ray: bool
    ) -> None:
        """Ends what is left on the driver's host without Ray's help, and waits until it is gone."""
        self._remains.gather_here(self._remnants(hellos, departed), by_ray=by_ray)
        for hello in hellos.values():
            if hello.node_id == self.home:
                wait_until_gone(hello.pid)
        self.extras.stop_here(self.home)

    def _remnants(self, hellos: Mapping[TaskId, Hello], departed: Collection[TaskId]) -> list[Remnant]:
        """The newest process of each task that has not cleared up after itself."""
        return [
            Remnant(setup=setup, hello=hellos.get(task))
            for task, setup in self._setups.items()
            if task not in departed
        ]

    def _ask_to_depart(self, tasks: list[TaskId]) -> tuple[TaskId, ...]:
        """Returns the tasks that obeyed. Before they train no command reaches them: they are just killed."""
        if self._mailbox is None:
            return ()
        self.command(Command.STOP, tasks)
        try:
            departed: Departed = ray.get(
                self._mailbox.wait_departed.remote(tasks, timeout_s=_PATIENCE_S), timeout=_PATIENCE_S + 1
            )
        except RayError as error:
            logger.debug("the mailbox does not answer: %s", error)
            return ()
        self.last_statuses = departed.statuses
        return departed.tasks

    def _kill_tasks(self) -> None:
        deaths = [handle.linger.remote() for handle in self.handles.values()]
        for handle in self.handles.values():
            ray.kill(handle)
        ray.wait(deaths, num_returns=len(deaths), timeout=_KILL_TIMEOUT_S)

    def _release(self) -> None:
        if self._mailbox is not None:
            ray.kill(self._mailbox)
        self._splits.stop()
        self._placement.remove()

    def _create_actor(self, setup: TaskSetup, *, node_id: str | None) -> Any:
        """Asks for one actor. None is no runtime_env at all, whose set-up takes a second."""
        actor = self._actor_class.options(
            num_cpus=setup.resources.num_cpus,
            num_gpus=setup.resources.num_gpus,
            memory=setup.resources.memory_bytes or None,
            resources=_other_amounts(setup.resources) or None,
            scheduling_strategy=self._placement.strategy_for(setup.task, node_id=node_id),
            max_restarts=0,
            max_task_retries=0,
            runtime_env=self._runtime_env,
        )
        return actor.remote()


def _is_up(gcs_address: str) -> bool:
    host, port = split_address(gcs_address)
    return accepts_tcp(host, port, timeout_s=_LOOK_S)


def _other_amounts(resources: Resources) -> dict[str, float]:
    """Returns what Ray has no option of its own for."""
    own = ("CPU", "GPU", "memory")
    return {name: amount for name, amount in resources.amounts.items() if name not in own}
