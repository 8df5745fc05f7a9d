"""ExtraActors: the commands of the extra roles of one attempt, started before the tasks train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from raydist.errors import RaydistError, SpecError, TaskFailedError
from raydist.runtime.cluster.placement import Placement, actor_options
from raydist.runtime.group.ray_failures import answers_in_time, describe_cause, raise_if_host_cannot
from raydist.runtime.host.salvage import salvage, wait_until_gone
from raydist.runtime.host.scratch import scratch_root
from raydist.runtime.task import role_actor
from raydist.spec.tasks import AnyTask, ExtraTask, Resources

# Beyond the time that a command has to end by itself: killing its children, and the end of its log.
_STOP_EXTRA_S = 6.0
_NUM_LINES = 5


class ExtraActors:
    """Not to be used from several threads at once.

    Attributes:
      notes: Sentences about commands that ended before the run did: well, or of roles that may fail.
    """

    def __init__(self, setups: Sequence[role_actor.RoleSetup]) -> None:
        self._setups = {setup.task: setup for setup in setups}
        self._handles: dict[ExtraTask, Any] = {}
        self._starts: dict[Any, ExtraTask] = {}
        self._runs: dict[Any, ExtraTask] = {}
        self._hellos: dict[ExtraTask, role_actor.RoleHello] = {}
        self._departed: set[ExtraTask] = set()
        self._failed: set[ExtraTask] = set()  # of those that may
        self.notes: tuple[str, ...] = ()

    @property
    def resources(self) -> dict[AnyTask, Resources]:
        return {task: setup.role.resources for task, setup in self._setups.items()}

    @property
    def refs(self) -> list[Any]:
        """What is to be waited for, and then given to `take`."""
        return [*self._starts, *self._runs]

    @property
    def all_started(self) -> bool:
        return self._setups.keys() <= {*self._hellos, *self._failed}

    def hosts(self) -> dict[str, str]:
        """Returns each role's hosts by the name of the variable that the tasks find them in.

        In the place of one that failed before its host was known there is nothing.
        """
        found: dict[str, list[str]] = {}
        for task, setup in self._setups.items():
            hello = self._hellos.get(task)
            found.setdefault(setup.role.hosts_variable, []).append("" if hello is None else hello.host)
        return {name: ",".join(hosts) for name, hosts in found.items()}

    def create(self, placement: Placement, *, runtime_env: Mapping[str, Any] | None) -> None:
        """Asks Ray for every actor."""
        actor_class: Any = ray.remote(role_actor.RoleActor)
        for task, setup in self._setups.items():
            options = actor_options(setup.role.resources, placement.strategy_for(task, node_id=None))
            actor = actor_class.options(
                **options,
                num_gpus=setup.role.resources.num_gpus,
                max_concurrency=role_actor.CONCURRENCY,
                runtime_env=runtime_env,
            )
            self._handles[task] = actor.remote()

    def start(self, code: Any) -> None:
        """Has every actor start its command; takes the code as it travels, and waits for nothing."""
        for task, handle in self._handles.items():
            self._starts[handle.start.remote(self._setups[task], code)] = task

    def take(self, ref: Any) -> None:
        """Takes in one of `refs` that is ready. What a role that may fail would raise becomes a note.

        Raises:
          TaskFailedError: A command ended by itself, and not well, or its process died.
          SpecError: A command cannot be started. ClusterError, StorageError: A host cannot run it.
        """
        takers = ((self._starts, self._take_hello), (self._runs, self._take_end))
        for awaited, take in takers:
            if (task := awaited.pop(ref, None)) is None:
                continue
            try:
                take(task, self._get(task, ref))
            except RaydistError as error:
                if not self._setups[task].role.may_fail:
                    raise
                self._failed.add(task)
                self.notes = (*self.notes, f"{error}; the run continues without it")

    def stop(self) -> None:
        """Ends every command with its children, as far as Ray reaches them, and then their actors."""
        ready, _ = ray.wait(list(self._starts), num_returns=len(self._starts), timeout=0)
        reached = {*self._hellos, *(self._starts[ref] for ref in ready)}
        stops = {self._handles[task].stop.remote(): task for task in reached}
        self._departed.update(answers_in_time(stops, timeout_s=role_actor.GRACE_S + _STOP_EXTRA_S))
        for handle in self._handles.values():
            ray.kill(handle)

    def stop_here(self, home: str | None) -> None:
        """Clears up on the driver's host without Ray's help; a guard ends the command of a dead actor."""
        for task, setup in self._setups.items():
            hello = self._hellos.get(task)
            if hello is None:
                # It may have created its folder before reporting; elsewhere the next task sweeps that.
                salvage(scratch_root() / setup.scratch_name, setup.log, pid=None)
            elif hello.node_id == home:
                if task not in self._departed:
                    salvage(hello.scratch_path, setup.log, pid=hello.pid)
                wait_until_gone(hello.pid)

    def _take_hello(self, task: ExtraTask, hello: role_actor.RoleHello) -> None:
        self._hellos[task] = hello
        if hello.problem is not None:
            command = role_actor.describe_command(self._setups[task])
            raise SpecError(
                f"{task} cannot start `{command}` on {hello.host}: {hello.problem}; "
                f"in roles.{task.role}.command name a program that is on PATH there, or in the job's code"
            )
        self._runs[self._handles[task].run.remote()] = task

    def _take_end(self, task: ExtraTask, end: role_actor.RoleEnd) -> None:
        command = role_actor.describe_command(self._setups[task])
        what = f"{task} ended by itself on {self._hellos[task].host}: `{command}` {end.how}"
        if not end.is_failure:
            self.notes = (*self.notes, f"{what}, before the run did")
            return
        lines = end.log_end.splitlines()[-_NUM_LINES:]
        output = f"the end of its log: {' | '.join(lines)}" if lines else "it printed nothing"
        raise TaskFailedError(f"{what}; {output}", task=str(task))

    def _get(self, task: ExtraTask, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except RayError as error:
            raise_if_host_cannot(task, error)
            hello = self._hellos.get(task)
            where = f" on {hello.host}" if hello else ""
            raise TaskFailedError(
                f"{task} was lost{where}: {describe_cause(error)}", task=str(task)
            ) from error
