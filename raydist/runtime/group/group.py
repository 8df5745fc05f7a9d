"""RayTaskGroup: the processes of one attempt, as Ray actors."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayError, RayTaskError

from raydist.controller.task_group import Explanation, GroupUpdate
from raydist.errors import ClusterError, StorageError
from raydist.planning.assignment import TaskAssignment
from raydist.planning.plan import Plan
from raydist.planning.roles import outlives_death_of
from raydist.planning.tf_config import make_assignments
from raydist.runtime.cluster import ray_internals
from raydist.runtime.cluster.connection import Connection
from raydist.runtime.cluster.datasets import Datasets
from raydist.runtime.cluster.reach import Loss, Reach
from raydist.runtime.cluster.runtime_env import runtime_env_of
from raydist.runtime.group.actors import ActorSet
from raydist.runtime.group.ledger import Ledger
from raydist.runtime.group.mailbox import News
from raydist.runtime.group.ray_failures import lost_task, raise_if_host_cannot, unreachable_task
from raydist.runtime.group.witness import Witness
from raydist.runtime.host.firewall.public import check_not_public
from raydist.runtime.host.leftovers import new_owner
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.software.versions import describe_difference, installed_versions
from raydist.runtime.task.greeting import Hello, TaskSetup
from raydist.runtime.task.role_actor import RoleSetup
from raydist.runtime.task.runner import runner_of
from raydist.spec.job import Strategy
from raydist.spec.status import Command, TaskState, TaskStatus
from raydist.spec.tasks import TaskId, TaskType, chief_of
from raydist.storage.proof import StorageProof

logger = logging.getLogger(__name__)

# How often a group that is not placed yet looks whether it is: Ray sends no event for it.
_PLACEMENT_POLL_S = 0.25
# The mailbox opens this part of the import's time after it: about when the first step is done.
_MAILBOX_DELAY = 0.5
# A task sends its status twice a second; after so long without one its process is looked at from outside.
_SILENCE_S = 2.0
# How soon it is looked again while an answer is awaited.
_LOOK_AGAIN_S = 0.2
# How often Ray is asked whether nodes are about to be taken away.
_NODES_POLL_S = 2.0
# One long poll of the mailbox; `poll` itself returns earlier.
_NEWS_TIMEOUT_S = 60.0


class RayTaskGroup:
    """Implements controller.task_group.TaskGroup. Not to be used from several threads at once."""

    def __init__(self, plan: Plan, actors: ActorSet, ledger: Ledger, *, attempt: int, run_uri: str) -> None:
        self._plan = plan
        self._actors = actors
        self._ledger = ledger
        self._attempt = attempt
        self._run_uri = run_uri
        self._code: Any = None
        self._datasets: Datasets = {}
        self._versions: dict[str, str] = {}
        self._on_hello: Callable[[Hello], None] = lambda hello: None
        self._assignments: dict[TaskId, TaskAssignment] = {}
        self._hellos: dict[Any, TaskId] = {}
        self._runs: dict[Any, TaskId] = {}
        self._warm_ups: list[Any] = []
        self._mailbox_due_at_s: float | None = None
        self._news: Any = None
        self._news_seq = 0
        self._greeted_at_s = 0.0
        self._reach = Reach()
        self._witness = Witness(home=actors.home)
        self._can_see_nodes = False
        self._looked_at_s = 0.0
        self._is_stopped = False
        self._is_ended = False

    @classmethod
    def start(
        cls,
        plan: Plan,
        *,
        attempt: int,
        connection: Connection,
        code: bytes | None,
        storage_uri: str,
        run_uri: str,
        proof: StorageProof | None = None,
        owner: str | None = None,
        runner: str | None = None,
        datasets: Datasets | None = None,
        on_hello: Callable[[Hello], None] = lambda hello: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> RayTaskGroup:
        """Asks Ray for every process, and returns without waiting for any.

        Args:
          code: What `code_archive.pack` returned; None ships nothing.
          storage_uri: Where runs are kept, absolute; the tasks' logs go there.
          run_uri: The run's folder, for the assignments.
          proof: What every host has to find on storage before anything starts; None checks nothing.
          owner: Marks what the processes leave on their hosts, for a controller that is brought back and
            clears up (runtime.host.leftovers); None for a controller whose death is its run's end.
          runner: `package.module:Class` of every task's TaskRunner; None for raydist's own.
          datasets: The `ray.data.Dataset`s to stream to the workers, by name.
          on_hello: Called with the hello of each task once its process is up, replaced ones included.
        """
        started_at_s = clock()
        owner = owner or new_owner()
        chief = chief_of([task.task_type for task in plan.tasks])
        setups = [
            TaskSetup(
                task=task,
                runner=runner or runner_of(task, plan.strategy, plan.job),
                keras=plan.keras,
                resources=plan.resources_of(task),
                ports=plan.job.ports,
                tpu_name=plan.inventory.tpu_name,
                may_vanish=outlives_death_of(task, plan.strategy),
                proof=proof,
                env=plan.job.env,
                keep_warm_s=plan.job.keep_warm,
                tells_packages=task == chief,
                log=LogTarget(storage_uri=storage_uri, run=plan.job.name, task=task, attempt=attempt),
                scratch_prefix=f"{plan.job.name}-{attempt}-{task.path_name}-{owner}",
            )
            for task in plan.tasks
        ]
        roles = [
            RoleSetup(
                role=role,
                task=task,
                job=plan.job,
                log=LogTarget(storage_uri=storage_uri, run=plan.job.name, task=task, attempt=attempt),
                scratch_name=f"{plan.job.name}-{attempt}-{task.path_name}-{owner}-0",
            )
            for role in plan.job.roles.values()
            for task in role.tasks
        ]
        is_spread = plan.strategy is Strategy.PARAMETER_SERVER
        actors = ActorSet.create(
            setups,
            roles=roles,
            spread=TaskType.PS if is_spread else None,
            avoid=plan.avoid,
            runtime_env=runtime_env_of(plan.job),
            is_driver_in_cluster=not connection.is_client,
        )
        ledger = Ledger(plan.tasks, started_at_s=started_at_s, clock=clock)
        group = cls(plan, actors, ledger, attempt=attempt, run_uri=run_uri)
        group._can_see_nodes = not connection.is_client
        group._datasets = datasets or {}
        group._on_hello = on_hello
        with contextlib.ExitStack() as on_error:
            on_error.callback(group.stop)
            group._hellos = actors.greet()
            group._warm_ups = actors.warm_up()
            group._versions = installed_versions()
            group._code = None if code is None else ray.put(code)
            actors.extras.start(group._code)
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
        notes = self._actors.extras.notes
        # A task can be replaced once the extra roles are there too, whose hosts it gets.
        return dataclasses.replace(update, all_addressed=bool(self._assignments), notes=notes)

    def command(self, command: Command, tasks: Sequence[TaskId] = ()) -> None:
        """Passes a command to those tasks, or to all; lost before every task has said hello.

        A task that still imports TensorFlow gets it afterwards.
        """
        if not self._is_stopped:
            self._actors.command(command, tasks or self._plan.tasks)

    def replace(self, task: TaskId) -> None:
        """Starts a new process for a task that died, at the address that its peers connect to."""
        if self._is_stopped:
            return
        dead, away = self._ledger.hellos.get(task), self._reach.unanswered()
        self._ledger.replaced(task)
        self._reach.close([task])
        self._expect_nothing_of(task)
        assignment = self._assignments[task]
        hello, run = self._actors.replace(
            task,
            dead,
            address=_peer_address(assignment),
            run=(assignment, self._code, self._actors.mailbox_name),
            is_host_gone=task in away,
        )
        self._hellos[hello] = task
        self._runs[run] = task

    def stop(self) -> None:
        """Ends every process, the placement group and the scratch folders. Idempotent."""
        self._is_stopped = True  # nothing is awaited from here on
        if not self._is_ended:
            # Only then is it done: a stop that Ctrl-C cut off is taken up again by the next.
            away = self._reach.unanswered()
            self._reach.close()
            self._witness.close()
            self._actors.stop(self._ledger.hellos, self._ledger.lost, away)
            self._is_ended = True

    def last_statuses(self) -> tuple[TaskStatus, ...]:
        """Returns, after `stop`, the newest status of each task that sent one since the last `poll`."""
        for status in self._actors.last_statuses:
            self._ledger.received(status)
        return self._ledger.take_update().statuses

    def explanations(self) -> tuple[Explanation, ...]:
        """Returns, after `stop`, what other hosts reported of the tasks that died there."""
        return self._witness.explanations(self._actors.findings())

    def _wait(self, deadline: float) -> None:
        """Waits for the next thing that can happen, and takes it in."""
        timeout_s = max(0.0, deadline - time.monotonic())
        if not self._ledger.is_placed:
            timeout_s = min(timeout_s, _PLACEMENT_POLL_S)
        if self._reach.is_waiting:
            timeout_s = min(timeout_s, _LOOK_AGAIN_S)
        if self._mailbox_due_at_s is not None:
            timeout_s = min(timeout_s, max(0.0, self._mailbox_due_at_s - time.monotonic()))
        news = [self._news] if self._news is not None else []
        waited_for = [*self._hellos, *self._warm_ups, *self._runs, *news, *self._actors.extras.refs]
        if not waited_for:
            time.sleep(timeout_s)
            return
        ready, _ = ray.wait(waited_for, num_returns=1, timeout=timeout_s)
        # What else is ready by now: one dead task often means several.
        found = ray.wait(waited_for, num_returns=len(waited_for), timeout=0)[0] if ready else []
        # The extra roles first: without them the train function fails too.
        for ref in sorted(found, key=lambda ref: ref not in self._actors.extras.refs):
            self._take(ref)
        if not self._ledger.is_placed and self._actors.is_placed():
            self._ledger.placed()
        if self._mailbox_due_at_s is not None and time.monotonic() >= self._mailbox_due_at_s:
            self._mailbox_due_at_s = None
            self._actors.open_mailbox()
            self._ask_for_news()

    def _look_at_nodes(self) -> None:
        """Notes the tasks on nodes that Ray has to drain: they are about to be taken away."""
        now = time.monotonic()
        if not self._can_see_nodes or now - self._looked_at_s < _NODES_POLL_S:
            return
        self._looked_at_s = now
        draining = ray_internals.draining_nodes()
        for task, hello in self._ledger.hellos.items():
            if hello.node_id in draining:
                self._ledger.drained(task)

    def _look_for_lost(self) -> None:
        """Finds the tasks whose process or host is gone without Ray's knowing of it yet."""
        for task, loss in self._reach.look(self._ledger.suspects(silence_s=_SILENCE_S)).items():
            hello = self._ledger.hellos[task]
            describe = functools.partial(
                unreachable_task,
                hello,
                loss,
                pid=self._ledger.pid_of(task),
                peak=self._ledger.peak_memory_bytes(task),
            )
            self._ledger.failed(describe() if loss is Loss.HOST else self._witness.describe(hello, describe))

    def _take(self, ref: Any) -> None:
        if ref == self._news:
            self._take_news(ref)
        elif ref in self._warm_ups:
            self._warm_ups.remove(ref)
            self._schedule_mailbox()
        elif ref in self._hellos:
            self._take_hello(ref, self._hellos.pop(ref))
        elif ref in self._runs:
            self._take_result(ref, self._runs.pop(ref))
        else:
            self._actors.extras.take(ref)
            self._run_once_all_are_up()

    def _take_hello(self, ref: Any, task: TaskId) -> None:
        try:
            hello = self._read_hello(ref, task)
        except (RayActorError, OutOfMemoryError, ClusterError, StorageError) as error:
            if not isinstance(error, RayError) and not self._assignments:
                raise
            # A replacement that fails, for whatever reason, is one task's failure.
            self._ledger.failed(lost_task(task, error, pid=None, host=None))
            self._expect_nothing_of(task)
            return
        self._ledger.greeted(hello)
        self._on_hello(hello)
        self._witness.hold(hello)
        self._reach.open(task, hello.address)
        if self._assignments:
            self._actors.gather_remains(task)
        self._run_once_all_are_up()

    def _read_hello(self, ref: Any, task: TaskId) -> Hello:
        """Returns the hello of a task.

        Raises:
          RayActorError: It died. OutOfMemoryError: Ray's memory monitor killed it.
          ClusterError, StorageError: Its host cannot run it.
        """
        try:
            hello: Hello = ray.get(ref)
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

    def _expect_nothing_of(self, task: TaskId) -> None:
        """Drops what a task's dead process would answer: it is known how that ended."""
        for refs in (self._hellos, self._runs):
            for ref in [ref for ref, waited_for in refs.items() if waited_for == task]:
                del refs[ref]

    def _run_once_all_are_up(self) -> None:
        if self._ledger.all_addressed and self._actors.extras.all_started and not self._assignments:
            self._run_all()

    def _run_all(self) -> None:
        addresses = {task: hello.address for task, hello in self._ledger.hellos.items()}
        _check_addresses_differ(addresses.values())
        self._assignments = make_assignments(
            self._plan,
            addresses,
            attempt=self._attempt,
            run_uri=self._run_uri,
            role_hosts=self._actors.extras.hosts(),
        )
        job = self._plan.job
        listening = {task: one.address for task, one in self._assignments.items() if one.address is not None}
        if not job.allow_public_ports:
            check_not_public(listening)
        if job.fence:
            # This process too: it looks after tasks by connecting to their ports.
            hosts = {hello.host for hello in self._ledger.hellos.values()} | self._actors.home_addresses()
            for task in listening:
                self._assignments[task] = dataclasses.replace(
                    self._assignments[task], fenced_in=tuple(sorted(hosts))
                )
        if self._datasets:
            for task, share in self._actors.split(self._datasets, self._ledger.hellos).items():
                self._assignments[task] = dataclasses.replace(self._assignments[task], datasets=share)
        for task, handle in self._actors.handles.items():
            run = handle.run.remote(self._assignments[task], self._code, self._actors.mailbox_name)
            self._runs[run] = task
        self._greeted_at_s = time.monotonic()
        self._schedule_mailbox()

    def _schedule_mailbox(self) -> None:
        """Decides when the mailbox opens, once the tasks run and have imported TensorFlow.

        One process more that starts beside the import and the first trace makes both later on a host
        with few cores, and until then there is little to report: deaths show in the tasks' own refs.
        """
        if self._runs and not self._warm_ups:
            now = time.monotonic()
            self._mailbox_due_at_s = now + (now - self._greeted_at_s) * _MAILBOX_DELAY

    def _take_result(self, ref: Any, task: TaskId) -> None:
        hello = self._ledger.hellos.get(task)
        pid, host = (self._ledger.pid_of(task), hello.host) if hello else (None, None)
        try:
            self._ledger.received(ray.get(ref))
        except RayTaskError as error:
            raise ClusterError(f"{task} on {host}: {error.cause}", task=str(task)) from error
        except RayError as error:  # by most of Ray's other ones too, a process was killed: OutOfMemoryError
            peak = self._ledger.peak_memory_bytes(task)
            describe = functools.partial(lost_task, task, error, pid=pid, host=host, peak=peak)
            self._ledger.failed(describe() if hello is None else self._witness.describe(hello, describe))

    def _take_news(self, ref: Any) -> None:
        self._news = None
        try:
            news: News = ray.get(ref)
        except RayError:
            # The tasks find the mailbox dead as well and end, which their own refs show.
            logger.warning("attempt %d: the mailbox died", self._attempt)
            return
        self._news_seq = news.seq
        for status in news.statuses:
            self._ledger.received(status)
            if status.state is TaskState.RUNNING:
                self._reach.renew(status.task)
        self._ask_for_news()

    def _ask_for_news(self) -> None:
        self._news = self._actors.wait_news(self._news_seq, timeout_s=_NEWS_TIMEOUT_S)


def _peer_address(assignment: TaskAssignment) -> str | None:
    """The address that the task's peers connect to; None for an evaluator, which has no peers."""
    known = [address for _, addresses in assignment.cluster_spec.jobs for address in addresses]
    return assignment.address if assignment.address in known else None


def _check_addresses_differ(addresses: Iterable[str]) -> None:
    twice = [address for address, count in Counter(addresses).items() if count > 1]
    if twice:
        raise ClusterError(
            f"two tasks have the address {twice[0]}; give each host of the Ray cluster its own address "
            "(ray start --node-ip-address=…)"
        )
