"""ActorSet: the actors of one attempt with their placement group and mailbox, and how they end."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from raydist.runtime.mailbox import Mailbox
from raydist.runtime.salvage import salvage, wait_until_gone
from raydist.runtime.scratch import scratch_root
from raydist.runtime.task_actor import Hello, TaskActor, TaskSetup
from raydist.spec.status import Order
from raydist.spec.tasks import Resources, TaskId

logger = logging.getLogger(__name__)

# How long tasks may take to end by themselves before they are killed.
_PATIENCE_S = 1.0
_KILL_TIMEOUT_S = 10.0
# A salvage that takes longer goes on by itself; one on a host that is gone never starts.
_SALVAGE_TIMEOUT_S = 5.0
# After this a dead Ray is left alone.
_STOP_TIMEOUT_S = 30.0
# Each task keeps one call open at the mailbox.
_MAX_EXCHANGES = 4096


class ActorSet:
    """Only asks and ends; what the actors answer is the group's to wait for."""

    def __init__(
        self, setups: Sequence[TaskSetup], *, placement: PlacementGroup | None, home: str | None
    ) -> None:
        self._setups = {setup.task: setup for setup in setups}
        self._placement = placement
        self._home = home
        self._mailbox: Any = None
        self.mailbox_name = f"raydist-mailbox-{uuid.uuid4().hex}"
        self.handles: dict[TaskId, Any] = {}

    @classmethod
    def create(cls, setups: Sequence[TaskSetup], *, is_driver_in_cluster: bool) -> ActorSet:
        """Asks Ray for the placement group and every actor at once, and waits for none of them."""
        placed = [setup for setup in setups if _bundle(setup.resources)]
        # PACK: the fewer hosts, the less of each all-reduce crosses the network; all or nothing in any case.
        placement = (
            placement_group([_bundle(setup.resources) for setup in placed], strategy="PACK")
            if placed
            else None
        )
        home = ray.get_runtime_context().get_node_id() if is_driver_in_cluster else None
        actors = cls(setups, placement=placement, home=home)
        actor_class = ray.remote(TaskActor)  # once: each such class is shipped to the workers
        with contextlib.ExitStack() as on_error:
            on_error.callback(actors.stop, {}, ())
            for setup in setups:
                index = placed.index(setup) if setup in placed else None
                actors.handles[setup.task] = _create_actor(actor_class, setup, placement, bundle_index=index)
            on_error.pop_all()
        return actors

    def greet(self) -> dict[Any, TaskId]:
        """Has every task say hello; returns the hellos, to be waited for."""
        return {handle.hello.remote(self._setups[task]): task for task, handle in self.handles.items()}

    def warm_up(self) -> list[Any]:
        """Has every task import TensorFlow, ahead of `run`, so that the import hides all until then."""
        return [handle.warm_up.remote() for handle in self.handles.values()]

    def is_placed(self) -> bool:
        """Whether Ray has found room for all tasks; asks Ray, and waits for nothing."""
        return self._placement is None or bool(self._placement.wait(timeout_seconds=0))

    def open_mailbox(self) -> None:
        """Starts the mailbox, on the driver's host: it shares the driver's fate. Tasks find it by name."""
        # Not `soft`: Ray 2.60 may then place it anywhere.
        where = NodeAffinitySchedulingStrategy(self._home, soft=False) if self._home else "DEFAULT"
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

    def order(self, order: Order, tasks: Sequence[TaskId]) -> None:
        if self._mailbox is not None:
            self._mailbox.order.remote(order, list(tasks))

    def wait_news(self, since: int, *, timeout_s: float) -> Any:
        return self._mailbox.wait_news.remote(since, timeout_s=timeout_s)

    def stop(self, hellos: Mapping[TaskId, Hello], lost: Collection[TaskId]) -> None:
        """Ends everything: asks those that are not lost, waits, kills, salvages."""
        departed: list[TaskId] = []
        # Any call to a Ray that was shut down would start a new one.
        if ray.is_initialized():
            self._call_ray(hellos, lost, departed)
        self._stop_here(hellos, departed)

    def _call_ray(
        self, hellos: Mapping[TaskId, Hello], lost: Collection[TaskId], departed: list[TaskId]
    ) -> None:
        # In a thread, because calls to a Ray that has died do not return.
        thread = threading.Thread(
            target=self._stop_by_ray, args=(hellos, lost, departed), name="raydist-stop", daemon=True
        )
        thread.start()
        thread.join(_STOP_TIMEOUT_S)
        if thread.is_alive():
            logger.warning("Ray did not answer while the tasks were stopped")

    def _stop_by_ray(
        self, hellos: Mapping[TaskId, Hello], lost: Collection[TaskId], departed: list[TaskId]
    ) -> None:
        try:
            departed += self._ask_to_depart([task for task in self.handles if task not in lost])
            self._kill_tasks()
            away = [
                hello for task, hello in hellos.items() if task not in departed and not self._is_here(hello)
            ]
            self._salvage_remotely(away)
            self._release()
        except RayError as error:
            logger.warning("Ray failed while the tasks were stopped: %s", error)

    def _stop_here(self, hellos: Mapping[TaskId, Hello], departed: Collection[TaskId]) -> None:
        """Ends what is left on the driver's host without Ray's help, and waits until it is gone."""
        for task, setup in self._setups.items():
            hello = hellos.get(task)
            if hello is None:
                # It may have died between making its folder and telling; swept later on another host.
                salvage(scratch_root() / setup.scratch_name, setup.log, pid=None)
            elif self._is_here(hello):
                if task not in departed:
                    salvage(hello.scratch_path, setup.log, pid=hello.pid)
                wait_until_gone(hello.pid)

    def _is_here(self, hello: Hello) -> bool:
        return hello.node_id == self._home

    def _ask_to_depart(self, tasks: list[TaskId]) -> tuple[TaskId, ...]:
        """Returns the tasks that obeyed; before they train nobody listens, and they are just killed."""
        if self._mailbox is None:
            return ()
        self.order(Order.STOP, tasks)
        try:
            departed: tuple[TaskId, ...] = ray.get(
                self._mailbox.wait_departed.remote(tasks, timeout_s=_PATIENCE_S), timeout=_PATIENCE_S + 1
            )
        except RayError as error:
            logger.debug("the mailbox does not answer: %s", error)
            return ()
        return departed

    def _kill_tasks(self) -> None:
        deaths = [handle.linger.remote() for handle in self.handles.values()]
        for handle in self.handles.values():
            ray.kill(handle)
        ray.wait(deaths, num_returns=len(deaths), timeout=_KILL_TIMEOUT_S)

    def _salvage_remotely(self, hellos: Sequence[Hello]) -> None:
        """Has each killed task's own host store the end of its log and delete its folder."""
        remote_salvage = ray.remote(cast(Any, salvage))
        refs = []
        for hello in hellos:
            there = NodeAffinitySchedulingStrategy(hello.node_id, soft=False)
            run = remote_salvage.options(num_cpus=0, max_retries=0, scheduling_strategy=there)
            refs.append(run.remote(hello.scratch_path, self._setups[hello.task].log, pid=hello.pid))
        deadline = time.monotonic() + _SALVAGE_TIMEOUT_S
        for ref in refs:
            try:
                ray.get(ref, timeout=max(0.0, deadline - time.monotonic()))
            except RayError as error:
                logger.warning("the end of a log is lost with its host: %s", error)

    def _release(self) -> None:
        if self._mailbox is not None:
            ray.kill(self._mailbox)
        if self._placement is not None:
            remove_placement_group(self._placement)


def _bundle(resources: Resources) -> dict[str, float]:
    amounts = {"CPU": resources.num_cpus, "GPU": resources.num_gpus, "TPU": resources.num_tpus}
    return {name: float(amount) for name, amount in amounts.items() if amount}


def _create_actor(
    actor_class: Any, setup: TaskSetup, placement: PlacementGroup | None, *, bundle_index: int | None
) -> Any:
    """Asks for one actor. No runtime_env: its set-up costs a second, and keeps idle workers from use."""
    where: Any = "DEFAULT"
    if placement is not None and bundle_index is not None:
        where = PlacementGroupSchedulingStrategy(placement, placement_group_bundle_index=bundle_index)
    tpus = {"TPU": setup.resources.num_tpus} if setup.resources.num_tpus else None
    actor = actor_class.options(
        num_cpus=setup.resources.num_cpus,
        num_gpus=setup.resources.num_gpus,
        resources=tpus,
        scheduling_strategy=where,
        max_restarts=0,
        max_task_retries=0,
    )
    return actor.remote()
