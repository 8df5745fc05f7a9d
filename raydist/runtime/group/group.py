"""RayTaskGroup: the processes of one attempt, as Ray actors."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raydist.controller.task_group import GroupUpdate
from raydist.errors import ClusterError, StorageError
from raydist.outcome.status import Command, TaskState, WorkerAddresses
from raydist.planning.assignment import TaskAssignment, make_assignments
from raydist.planning.plan import Plan
from raydist.planning.roles import outlives_death_of
from raydist.runtime.cluster import ray_internals
from raydist.runtime.cluster.connection import Connection
from raydist.runtime.cluster.datasets import Datasets
from raydist.runtime.cluster.reachability import Reachability
from raydist.runtime.group.actors import ActorSet
from raydist.runtime.group.ledger import (
    Answer,
    Ledger,
    Listener,
    max_printed_bytes,
    progress_every_s,
)
from raydist.runtime.group.ray_failures import lost_task, raise_if_host_cannot, unreachable_task
from raydist.runtime.host.firewall import check_not_public
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.salvage import new_owner
from raydist.runtime.host.software import describe_difference, installed_versions
from raydist.runtime.task.actor import News
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.runtime.task.role_actor import RoleSetup
from raydist.runtime.task.runner import runner_of
from raydist.spec.tasks import TaskId, TaskType, chief_of
from raydist.spec.text import listed
from raydist.storage.proof import StorageProof

logger = logging.getLogger(__name__)

# How often a group that is not placed yet looks whether it is: Ray sends no event for it.
_PLACEMENT_POLL_S = 0.25
# After so many statuses that did not come a task's process is looked at from outside.
_MISSED_STATUSES = 2
# How soon it is looked again while an answer is awaited.
_LOOK_AGAIN_S = 0.2
# How often Ray is asked whether nodes are about to be taken away.
_NODES_POLL_S = 2.0


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """What all attempts of a run are started with.

    Attributes:
      storage_uri: Where runs are kept, absolute; the tasks' logs go there.
      run_uri: The run's folder, for the assignments.
      code: What `code_archive.pack` returned; None ships nothing.
      owner: Marks what the processes leave on their hosts, for a controller that is brought back and
        clears up (runtime.host.salvage); None for a controller whose death is its run's end.
      runner: `package.module:Class` of every task's TaskRunner; None for raydist's own.
      datasets: The `ray.data.Dataset`s to stream to the workers, by name.
      on_hello: Called with the hello of each task once its process is up, replaced ones included.
      shows_output: Whether somebody watches what a script prints.
    """

    connection: Connection
    storage_uri: str
    run_uri: str
    code: bytes | None = None
    owner: str | None = None
    runner: str | None = None
    datasets: Datasets = field(default_factory=dict)
    on_hello: Callable[[Hello], None] = lambda hello: None
    shows_output: bool = False


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call to a task's agent whose answer is awaited.

    Attributes:
      agent: Whom it was made to, since a task can get another one.
      incarnation: Of the process that it is about.
    """

    name: str
    task: TaskId
    agent: Any
    incarnation: int = 0


class RayTaskGroup:
    """Implements controller.task_group.TaskGroup. Not to be used from several threads at once.

    Attributes:
      lost_hosts: Once it is stopped, the addresses of the hosts that were gone.
    """

    def __init__(
        self,
        plan: Plan,
        actors: ActorSet,
        ledger: Ledger,
        launch: LaunchSpec,
        *,
        attempt: int,
        setup_of: Callable[[TaskId], TaskSetup],
    ) -> None:
        self._plan = plan
        self._setup_of = setup_of
        self._actors = actors
        self._ledger = ledger
        self._launch = launch
        self._attempt = attempt
        self._code: Any = None
        self._versions: dict[str, str] = {}
        self._assignments: dict[TaskId, TaskAssignment] = {}
        self._workers_at: dict[int, str] = {}  # where the chief is to look for its workers
        self._numbers = itertools.count()
        # One of them, and Ray's reference to it: what all have in common.
        self._common: tuple[TaskAssignment, Any] | None = None
        self._progress_every_s = progress_every_s(len(plan.tasks))
        self._listener = Listener(
            progress_every_s=self._progress_every_s,
            max_printed_bytes=max_printed_bytes(len(plan.tasks)) if launch.shows_output else 0,
        )
        self._followed: set[Any] = set()
        self._awaited_extras: set[Any] = set()
        self._gone: set[TaskId] = set()  # tasks whose agents are
        self._early: dict[TaskId, list[Command]] = {}  # commands for tasks that have not said hello
        self._reach = Reachability()
        self._can_see_nodes = not launch.connection.is_client
        self._looked_at_s = 0.0
        self._is_stopped = False
        self._is_ended = False
        self.lost_hosts: frozenset[str] = frozenset()

    @classmethod
    def start(
        cls,
        plan: Plan,
        launch: LaunchSpec,
        *,
        attempt: int,
        proof: StorageProof | None = None,
        kept: ActorSet | None = None,
        is_revived: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> RayTaskGroup:
        """Asks Ray for every process, and returns without waiting for any.

        Args:
          proof: What every host has to find on storage before anything starts; None checks nothing.
          kept: The agents of the attempt before, which fit this plan; those that are missing are asked for.
          is_revived: Whether those have died with a controller, and may have left a state to the fork server.
        """
        started_at_s = clock()
        owner = launch.owner or new_owner()
        chief = chief_of([task.task_type for task in plan.tasks])
        log_of = functools.partial(
            LogTarget, storage_uri=launch.storage_uri, run=plan.job.name, attempt=attempt
        )

        def setup_of(task: TaskId) -> TaskSetup:
            return TaskSetup(
                task=task,
                runner=launch.runner or runner_of(task, plan.strategy, plan.job),
                keras=plan.keras,
                resources=plan.resources_of(task),
                num_threads=plan.worker_threads if task.task_type is TaskType.WORKER else None,
                ports=plan.job.ports,
                tpu_name=plan.inventory.tpu_name,
                may_vanish=outlives_death_of(task, plan.strategy),
                may_move=plan.follows_workers and task.task_type is TaskType.WORKER,
                proof=proof,
                env=plan.job.env,
                keep_warm_s=plan.job.keep_warm,
                tells_packages=task == chief,
                log=log_of(task=task),
                scratch_prefix=f"{plan.job.name}-{attempt}-{task.path_name}-{owner}",
            )

        roles = [
            RoleSetup(
                role=role,
                task=task,
                job=plan.job,
                log=log_of(task=task),
                scratch_name=f"{plan.job.name}-{attempt}-{task.path_name}-{owner}-0",
            )
            for role in plan.job.roles.values()
            for task in role.tasks
        ]
        actors = kept or ActorSet(plan, is_driver_in_cluster=not launch.connection.is_client)
        actors.has_kept = actors.has_kept or is_revived
        ledger = Ledger(plan.tasks, started_at_s=started_at_s, clock=clock)
        group = cls(plan, actors, ledger, launch, attempt=attempt, setup_of=setup_of)
        with contextlib.ExitStack() as on_error:
            on_error.callback(group.stop)
            actors.start([setup_of(task) for task in plan.tasks], roles=roles)
            for task in plan.tasks:
                group._await("hello", task, actors.begin(task))
            group._versions = installed_versions()
            group._code = None if launch.code is None else ray.put(launch.code)
            actors.extras.start(group._code)
            group._await_extras()
            on_error.pop_all()
        return group

    def poll(self, *, timeout_s: float) -> GroupUpdate:
        """Waits at most `timeout_s` for news and returns it.

        Raises:
          ClusterError: A host cannot run its task: it lacks raydist or a port, or its versions differ.
          StorageError: A host does not see the storage that the driver writes to.
          TaskFailedError: The command of an extra role ended by itself, and not well.
          SpecError: The command of an extra role cannot be started.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_stopped:
            self._wait(deadline)
            self._look_at_nodes()
            self._look_for_lost()
            if self._ledger.has_news or time.monotonic() >= deadline:
                break
        update = self._ledger.take_update()
        notes = (*self._actors.notes, *self._actors.extras.notes)
        # A task can be replaced once the extra roles are there too, whose hosts it gets.
        return dataclasses.replace(update, all_addressed=bool(self._assignments), notes=notes)

    def command(self, command: Command, tasks: Sequence[TaskId] = ()) -> None:
        """Passes a command to those tasks, or to all; one that is not there yet gets it once it is."""
        if self._is_stopped:
            return
        for task in tasks or self._plan.tasks:
            if task not in self._ledger.hellos:
                self._early.setdefault(task, []).append(command)
            elif task not in self._gone:
                self._actors.command(command, task)

    def replace(self, task: TaskId) -> None:
        """Starts a new process for a task that died, at the address that its peers connect to."""
        if self._is_stopped:
            return
        dead, away = self._ledger.hellos.get(task), self._reach.unanswered()
        self._ledger.replaced(task)
        self._reach.close([task])
        if task in self._gone:  # another agent may come up anywhere, or nowhere for long
            self._tell_chief(task, None)
        hello = self._actors.renew(
            task,
            dead,
            address=_peer_address(self._assignments.get(task)),
            is_agent_gone=task in self._gone,
            is_host_gone=task in away,
        )
        self._gone.discard(task)
        self._await("hello", task, hello)

    def add_workers(self, plan: Plan) -> None:
        """Starts the workers that `plan` has beside those that there are.

        Raises:
          ClusterError: Ray cannot be asked for their room.
        """
        if self._is_stopped:
            return
        added = [task for task in plan.tasks if task not in self._actors.handles]
        self._plan = plan
        self._ledger.add(added)
        try:
            self._actors.add(plan, [self._setup_of(task) for task in added])
        except (RayError, ConnectionError) as error:
            raise ClusterError(f"Ray cannot be asked for room for {listed(added)}: {error}") from error
        for task in added:
            self._await("hello", task, self._actors.begin(task))

    def remove_workers(self, plan: Plan) -> None:
        """Ends what is left of the workers that `plan` does without, and gives their room back."""
        if self._is_stopped:
            return
        removed = [task for task in self._actors.handles if task not in plan.tasks]
        self._plan = plan
        self._reach.close(removed)
        for task in removed:
            self._tell_chief(task, None)
            self._actors.remove(plan, task, self._ledger.hellos.get(task))
            self._ledger.remove(task)
            self._gone.discard(task)

    def _tell_chief(self, task: TaskId, address: str | None) -> None:
        """Tells the chief where one of its workers is from now on; None for one that is gone."""
        if task.task_type is not TaskType.WORKER or not self._plan.follows_workers:
            return
        if self._workers_at.get(task.index) == address:
            return
        self._workers_at.pop(task.index, None)
        if address is not None:
            self._workers_at[task.index] = address
        told = WorkerAddresses(number=next(self._numbers), addresses=dict(self._workers_at))
        chief = chief_of(role.task_type for role in self._plan.roles)
        if chief not in self._gone:
            self._actors.command(told, chief)

    def stop(self, *, for_another: bool = False, keeps_state: bool = True) -> None:
        """Ends every process, agent and placement group, and removes the scratch folders. Idempotent.

        Args:
          for_another: Leaves agents and room to another attempt, see `kept`.
          keeps_state: Whether that may continue from what the chief's agent has in memory.
        """
        self._is_stopped = True  # nothing is awaited from here on
        if not self._is_ended:
            # Only then is it done: a stop that Ctrl-C cut off is taken up again by the next.
            away, lost = self._reach.unanswered(), self._reach.lost()
            self._reach.close()
            self._listener.close()
            hellos = self._ledger.hellos.items()
            self.lost_hosts = frozenset(hello.host for task, hello in hellos if task in lost)
            self._actors.has_kept = keeps_state
            leaving = self._ledger.leaving
            self._actors.stop(self._ledger.hellos, self._gone, away, leaving, for_another=for_another)
            self._is_ended = True

    @property
    def kept(self) -> ActorSet:
        """The agents, once they are left to another attempt."""
        return self._actors

    def last_update(self) -> GroupUpdate:
        """Returns, after `stop`, what became known since the last `poll`."""
        for answer in self._listener.take(timeout_s=0):
            call: Any = answer.key
            if isinstance(call, _Call) and call.name == "news" and answer.future.exception() is None:
                self._ledger.printed(answer.future.result().printed)
        for news in self._actors.last_news:
            self._ledger.printed(news.printed)
            if news.status is not None:
                self._ledger.received(news.status)
        return self._ledger.take_update()

    def _await(self, name: str, task: TaskId, ref: Any) -> None:
        agent, incarnation = self._actors.handles[task], self._ledger.incarnation_of(task)
        self._listener.expect(_Call(name=name, task=task, agent=agent, incarnation=incarnation), ref)

    def _await_extras(self) -> None:
        for ref in self._actors.extras.refs:
            if ref not in self._awaited_extras:
                self._awaited_extras.add(ref)
                self._listener.expect(ref, ref)

    def _wait(self, deadline: float) -> None:
        """Waits for the next thing that can happen, and takes it in."""
        timeout_s = max(0.0, deadline - time.monotonic())
        if not self._ledger.is_placed:
            timeout_s = min(timeout_s, _PLACEMENT_POLL_S)
        if self._reach.is_waiting:
            timeout_s = min(timeout_s, _LOOK_AGAIN_S)
        answers = self._listener.take(timeout_s=timeout_s)
        # The extra roles first: without them the train function fails too.
        for answer in sorted(answers, key=lambda answer: isinstance(answer.key, _Call)):
            self._take(answer)
        if not self._ledger.is_placed and self._actors.is_placed():
            self._ledger.placed()

    def _look_at_nodes(self) -> None:
        """Notes the tasks on nodes that Ray has to drain, and replaces standbys that are missing."""
        now = time.monotonic()
        if now - self._looked_at_s < _NODES_POLL_S:
            return
        self._looked_at_s = now
        draining = ray_internals.draining_nodes() if self._can_see_nodes else ()
        for task, hello in self._ledger.hellos.items():
            if hello.node_id in draining:
                self._ledger.drained(task)
        hellos = self._ledger.hellos
        if self._assignments and len(hellos) == len(self._plan.tasks):  # a replacement needs the room first
            self._actors.stand_by(hellos, away_from=draining)

    def _look_for_lost(self) -> None:
        """Finds the tasks whose agent or host is gone without Ray's knowing of it yet."""
        suspects = self._ledger.suspects(silence_s=_MISSED_STATUSES * self._progress_every_s)
        for task, loss in self._reach.look(suspects).items():
            self._gone.add(task)
            pid = self._ledger.pid_of(task)
            self._ledger.failed(unreachable_task(self._ledger.hellos[task], loss, pid=pid))

    def _take(self, answer: Answer) -> None:
        call: Any = answer.key
        if not isinstance(call, _Call):  # the reference of an extra role's
            self._actors.extras.take(call)
            self._await_extras()
            self._run_once_all_are_up()
            return
        if call.agent is not self._actors.handles.get(call.task):
            return  # of an agent in whose place there is another
        try:
            if call.name == "news":
                self._take_news(answer.future.result())
            elif call.incarnation != self._ledger.incarnation_of(call.task):
                return
            elif call.name == "hello":
                self._take_hello(answer.future, call.task)
            else:
                answer.future.result()
        except RayTaskError as error:
            raise ClusterError(f"{call.task}: {error.cause}", task=str(call.task)) from error
        except RayError as error:  # by most of Ray's other ones too, its agent was killed: OutOfMemoryError
            self._lose_agent(call.task, error)

    def _lose_agent(self, task: TaskId, error: RayError) -> None:
        if task in self._gone:
            return
        self._gone.add(task)
        hello, peak = self._ledger.hellos.get(task), self._ledger.peak_memory_bytes(task)
        self._ledger.failed(lost_task(task, error, hello=hello, peak=peak))

    def _take_hello(self, answer: Future[Hello], task: TaskId) -> None:
        try:
            hello = self._read_hello(answer, task)
            if self._assignments:
                self._assign_again(hello)
        except (ClusterError, StorageError) as error:
            if not self._assignments:
                raise
            # A replacement that fails, for any reason, is one task's failure.
            self._ledger.failed(lost_task(task, error))
            return
        self._ledger.greeted(hello)
        self._launch.on_hello(hello)
        self._reach.open(task, hello.address)
        agent = self._actors.handles[task]
        if agent not in self._followed:
            self._followed.add(agent)
            self._listener.follow(_Call(name="news", task=task, agent=agent), agent)
        if self._assignments:
            self._actors.gather_remains(task)
            self._run(task)
            self._tell_chief(task, hello.address)
        for command in self._early.pop(task, ()):
            self._actors.command(command, task)
        self._run_once_all_are_up()

    def _read_hello(self, answer: Future[Hello], task: TaskId) -> Hello:
        """Returns the hello of a task.

        Raises:
          RayActorError: It died. OutOfMemoryError: Ray's memory monitor killed it.
          ClusterError, StorageError: Its host cannot run it.
        """
        try:
            hello = answer.result()
        except RayError as error:
            raise_if_host_cannot(task, error)
            raise
        # What the driver lacks has to be the same on the hosts nevertheless.
        first = next(iter(self._ledger.hellos.values()), hello)
        references = {"the driver": self._versions, f"host {first.host}": first.versions}
        difference = describe_difference(hello.host, hello.versions, references=references)
        if difference is not None:
            raise ClusterError(difference, task=str(task))
        return hello

    def _run_once_all_are_up(self) -> None:
        if self._ledger.all_addressed and self._actors.extras.all_started and not self._assignments:
            self._run_all()

    def _run_all(self) -> None:
        addresses = {task: hello.address for task, hello in self._ledger.hellos.items()}
        _check_addresses_differ(addresses.values())
        job = self._plan.job
        # This process too: it looks after tasks by connecting to their ports.
        hosts = {hello.host for hello in self._ledger.hellos.values()} | self._actors.home_addresses()
        self._assignments = make_assignments(
            self._plan,
            addresses,
            attempt=self._attempt,
            run_uri=self._launch.run_uri,
            role_hosts=self._actors.extras.hosts(),
            fenced_in=tuple(sorted(hosts)) if job.fence else None,
        )
        common = self._assignments[self._plan.tasks[0]]
        self._common = common, ray.put(common)
        if self._plan.follows_workers:
            workers = (task for task in self._plan.tasks if task.task_type is TaskType.WORKER)
            self._workers_at = {task.index: addresses[task] for task in workers}
        listening = {task: one.address for task, one in self._assignments.items() if one.address is not None}
        if not job.allow_public_ports:
            check_not_public(listening)
        if self._launch.datasets:
            for task, share in self._actors.split(self._launch.datasets, self._ledger.hellos).items():
                self._assignments[task] = dataclasses.replace(self._assignments[task], datasets=share)
        kept = [self._chief.kept.remote()] if self._actors.has_kept else []
        for task in self._plan.tasks:
            self._run(task, kept if task.task_type is not TaskType.EVALUATOR else ())

    def _assign_again(self, hello: Hello) -> None:
        """Gives a worker that is new, or has come back elsewhere, its assignment."""
        task, known = hello.task, self._assignments.get(hello.task)
        if not self._plan.follows_workers or (known is not None and known.address in (None, hello.address)):
            return
        if not self._plan.job.allow_public_ports:
            check_not_public({task: hello.address})
        addresses = {task: one.address for task, one in self._assignments.items() if one.address is not None}
        self._assignments[task] = make_assignments(
            self._plan,
            {**addresses, task: hello.address},
            attempt=self._attempt,
            run_uri=self._launch.run_uri,
            role_hosts=self._actors.extras.hosts(),
        )[task]

    @property
    def _chief(self) -> Any:
        return self._actors.handles[chief_of(role.task_type for role in self._plan.roles)]

    def _run(self, task: TaskId, kept: Sequence[Any] = ()) -> None:
        assert self._common is not None
        common, ref = self._common
        own = self._assignments[task].own_part(common)
        run = self._actors.handles[task].run.remote(ref, own, self._code, self._chief, kept)
        self._await("run", task, run)

    def _take_news(self, news: News) -> None:
        self._ledger.printed(news.printed)
        if news.status is None:
            return
        self._ledger.received(news.status)
        if news.status.state is TaskState.RUNNING:
            self._reach.renew(news.status.task)


def _peer_address(assignment: TaskAssignment | None) -> str | None:
    """The address that the task's peers connect to; None for an evaluator, and one that has told none."""
    if assignment is None:
        return None
    has_peers = assignment.task.task_type in (TaskType.DATA_WORKER, *dict(assignment.cluster_spec.jobs))
    return assignment.address if has_peers else None


def _check_addresses_differ(addresses: Iterable[str]) -> None:
    twice = [address for address, count in Counter(addresses).items() if count > 1]
    if twice:
        raise ClusterError(
            f"two tasks have the address {twice[0]}; give each host of the Ray cluster its own address "
            "(ray start --node-ip-address=…)"
        )
