"""RayLauncher: fits each attempt to what the Ray cluster has, and launches it."""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Mapping, Sequence

from raydist.planning.fitting import (
    avoiding_unfit,
    fitted,
    less_data_room,
    resized,
    room_beside,
    with_more_memory,
)
from raydist.planning.inventory import Inventory
from raydist.planning.plan import Plan
from raydist.runtime.cluster.inventory import probe_free, probe_inventory, unreachable_hosts
from raydist.runtime.cluster.ray_internals import can_select_nodes
from raydist.runtime.doctor.survey import problems_of
from raydist.runtime.group.group import LaunchSpec, RayTaskGroup
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskType
from raydist.storage.proof import StorageProof

# What the attempt before has held is free a moment after its processes are gone.
_RELEASE_S = 3.0
_POLL_S = 0.25


class RayLauncher:
    """Implements controller.task_group.Launcher."""

    def __init__(self, plan: Plan, launch: LaunchSpec) -> None:
        """Takes the run's plan."""
        self._plan = plan
        self._launch = launch
        self._connection = launch.connection
        self._has_launched = False
        self._proof: StorageProof | None = None  # the one that was left last
        self._gone: frozenset[str] = frozenset()  # hosts that did not answer when the attempt was planned
        self._known_gone: frozenset[str] = frozenset()  # those that `room` has asked in vain since
        self._group: RayTaskGroup | None = None

    def replan(
        self,
        *,
        avoid: frozenset[str],
        suspected: frozenset[str] = frozenset(),
        out_of_memory: Sequence[TaskType] = (),
    ) -> Plan:
        plan = self._plan
        if out_of_memory:
            plan = with_more_memory(plan, probe_inventory(self._connection), out_of_memory)
        if not self._connection.is_client:  # from outside, hosts need not answer
            lost = frozenset() if self._group is None else self._group.lost_hosts
            self._gone = unreachable_hosts(known=lost | self._known_gone) - avoid
            self._known_gone = self._gone if plan.is_elastic else frozenset()
            avoid |= self._gone
        problems = self._problems_of(suspected - avoid)
        if avoid or problems:
            plan = avoiding_unfit(plan, probe_inventory(self._connection), avoid, problems=problems)
        # Only now, as the workers share the hosts that are not avoided.
        return self._sized(plan) if plan.is_elastic else plan

    def _sized(self, plan: Plan) -> Plan:
        """Returns the plan with as many workers as there is room for; those that are kept stay."""
        if (num_kept := self._num_kept(plan)) >= plan.job.workers.minimum:
            plan = resized(plan, min(num_kept, plan.job.workers.maximum))
            return resized(plan, room_beside(plan, self._free(plan)))
        self.close()  # what is kept has to count as free
        deadline = time.monotonic() + _RELEASE_S
        plan = fitted(plan, self._free(plan))
        while plan.num_workers < plan.job.workers.maximum and time.monotonic() < deadline:
            time.sleep(_POLL_S)
            plan = fitted(plan, self._free(plan))
        return plan

    def _num_kept(self, plan: Plan) -> int:
        if self._group is None or not self._can_keep(plan):
            return 0
        return self._group.kept.num_workers_for(plan)

    def _can_keep(self, plan: Plan) -> bool:
        # From outside it cannot be asked which nodes are still there.
        return plan.strategy is Strategy.MULTI_WORKER_MIRRORED and not self._connection.is_client

    def _problems_of(self, hosts: frozenset[str]) -> Mapping[str, str]:
        """Returns what is wrong with those of the hosts that have a problem."""
        job = self._plan.job
        # In a runtime environment of the job's own, tasks have other packages than the check would see.
        if not hosts or job.runtime_env or not can_select_nodes():
            return {}
        # The driver waits for a storage that is out of order, which is not a host's fault; a host does not.
        proof = self._leave_proof(is_first=False)
        return problems_of(hosts, dataclasses.replace(proof, is_first=True), env=job.env)

    def _leave_proof(self, *, is_first: bool) -> StorageProof:
        """Writes the next token.

        Raises StorageError if the one before is gone: an attempt on another storage would find no checkpoint
        and begin anew.
        """
        if self._proof is not None:
            self._proof.check_unchanged(host=socket.gethostname())
        job = self._plan.job
        self._proof = StorageProof.leave(storage_uri=job.storage, run=job.name, is_first=is_first)
        return self._proof

    def room(self, plan: Plan, *, is_placed: bool) -> int:
        free = self._free(plan)
        listed = {host.node_id: host.name for host in free.hosts if host.name in self._gone}
        if not listed.keys().isdisjoint(plan.avoid):  # one that answers again counts again
            gone = unreachable_hosts()
            self._known_gone = self._gone & gone
            avoid = (node_id for node_id in plan.avoid if node_id not in listed or listed[node_id] in gone)
            plan = dataclasses.replace(plan, avoid=tuple(avoid))
        if not is_placed:
            return fitted(plan, free).num_workers
        group = self._group
        if group is None or plan.resizes_in_place:
            return room_beside(plan, free)
        num_workers = room_beside(plan, free, num_spare=group.kept.num_spare(plan))
        if not self._can_keep(plan):
            return num_workers
        return plan.num_workers + group.kept.grow(plan, num_workers - plan.num_workers)

    def _free(self, plan: Plan) -> Inventory:
        """Returns what is free, less what Ray Data needs where it reads for the run."""
        free = probe_free(self._connection)
        return less_data_room(free, plan.all_roles) if self._launch.datasets else free

    def launch(self, plan: Plan, *, attempt: int) -> RayTaskGroup:
        is_first, self._has_launched = not self._has_launched, True
        kept = None if self._group is None else self._group.kept
        if kept is not None and not kept.adapt_to(plan):
            self.close()
            kept = None
        proof = self._leave_proof(is_first=is_first)
        self._group = RayTaskGroup.start(
            plan,
            self._launch,
            attempt=attempt,
            proof=proof,
            kept=kept,
            is_revived=is_first and attempt > 0,
        )
        return self._group

    def close(self) -> None:
        if self._group is not None:
            self._group.kept.release()
            self._group = None
