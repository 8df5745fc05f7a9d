"""A cluster that is described instead of asked, and what TensorFlow itself costs in one of that size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from raydist.errors import SpecError
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.planning.tf_config import cluster_spec, tf_config
from raydist.spec.byte_size import parse_bytes, size_text
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskType

SIMULATED = "simulated:"
EXAMPLE = "simulated:hosts=1250,cpus=8,gpus=8,memory=64GiB"
_NAMES = ("hosts", "cpus", "gpus", "tpus", "memory")
_MAX_HOSTS = 100_000
# Linux's MAX_ARG_STRLEN: a longer variable keeps a process from starting others.
MAX_VARIABLE_BYTES = 128 * 1024
# As long as most addresses get: IPv4, and a port of five digits.
_ADDRESS = "10.100.100.100:40000"


def simulated_inventory(address: str) -> Inventory:
    """Returns the hosts that `simulated:hosts=N,cpus=N,gpus=N,tpus=N,memory=SIZE` describes, all alike.

    Raises:
      SpecError: It describes none.
    """
    amounts: dict[str, str] = {}
    for part in address.removeprefix(SIMULATED).split(","):
        name, equals, amount = part.partition("=")
        if name not in _NAMES or not equals or name in amounts:
            known = ", ".join(_NAMES)
            raise SpecError(
                f"address has {part!r}; a simulated cluster takes each of {known} once: {EXAMPLE}"
            )
        amounts[name] = amount
    num_hosts = _whole(amounts, "hosts", at_least=1)
    host = {
        "num_cpus": float(_whole(amounts, "cpus", at_least=1)),
        "num_gpus": _whole(amounts, "gpus", at_least=0),
        "num_tpus": float(_whole(amounts, "tpus", at_least=0)),
        "memory_bytes": parse_bytes("memory of the simulated hosts", amounts.get("memory", 0)),
    }
    names = (f"host-{index}" for index in range(num_hosts))
    hosts = tuple(Host(name=name, node_id=name, **host) for name in names)  # type: ignore[arg-type]
    return Inventory(hosts=hosts, source="a simulated cluster")


def _whole(amounts: dict[str, str], name: str, *, at_least: int) -> int:
    written = amounts.get(name, str(at_least))
    if not re.fullmatch(r"[0-9]{1,9}", written) or not at_least <= int(written) <= _MAX_HOSTS:
        raise SpecError(
            f"address has {name}={written}; write a whole number from {at_least} to {_MAX_HOSTS}, "
            f"as in {EXAMPLE}"
        )
    return int(written)


@dataclass(frozen=True, kw_only=True)
class ClusterCost:
    """What TensorFlow's own cluster of a plan's tasks costs, whatever they train.

    Attributes:
      tf_config_bytes: Of one task's TF_CONFIG, which has the addresses of all.
      ring_steps: Messages that each worker sends one after the other in an all-reduce of TensorFlow's CPU
        ring: 2 (N - 1) for N workers. None where none is made.
      most_connections: Of the task that has the most, to other tasks.
      connections: Of all tasks.
      num_ps_hosts: On how many hosts parameter servers find themselves; None without any.
    """

    tf_config_bytes: int
    ring_steps: int | None
    most_connections: int
    connections: int
    num_ps_hosts: int | None

    def sentences(self) -> list[str]:
        """Returns a sentence for each cost."""
        said = [f"each task's TF_CONFIG has {size_text(self.tf_config_bytes)}"]
        if self.tf_config_bytes > MAX_VARIABLE_BYTES:
            said[0] += (
                ", and Linux limits a variable to 131.1 kB: a task that starts other processes has to remove "
                "it from their environment"
            )
        if self.ring_steps is not None:
            said.append(f"an all-reduce on CPUs takes {self.ring_steps} messages one after the other")
        said.append(
            f"{self.connections} connections between tasks, {self.most_connections} of them of one task"
        )
        if self.num_ps_hosts is not None:
            said.append(f"parameter servers on {self.num_ps_hosts} hosts")
        return said


def cluster_cost(plan: Plan) -> ClusterCost | None:
    """Returns what TensorFlow's cluster costs; None where the plan has none, or one of one task.

    Connections as found on runs of TensorFlow 2.21 with 4 workers, and with 2 workers and 2 ps. A worker of
    multi_worker_mirrored has one to worker/0, which leads, to the one before it in the ring, and to its
    parent in the tree that first values come by. Under parameter_server the chief has one to each worker and
    ps, a worker and a ps have one to each other in both directions, and ps/0 has one to each other ps.
    """
    spec = cluster_spec(plan.strategy, dict.fromkeys(plan.tasks, _ADDRESS))
    if sum(len(addresses) for _, addresses in spec.jobs) < 2:
        return None
    config = tf_config(spec, plan.tasks[0]) or ""
    sizes = {task_type: len(addresses) for task_type, addresses in spec.jobs}
    workers, ps = sizes.get(TaskType.WORKER, 0), sizes.get(TaskType.PS, 0)
    if plan.strategy is Strategy.PARAMETER_SERVER:
        return ClusterCost(
            tf_config_bytes=len(config),
            ring_steps=None,
            most_connections=max(workers + ps, 2 * workers + ps, 2 * ps + 1),
            connections=workers + ps + 2 * workers * ps + ps - 1,
            num_ps_hosts=min(ps, len(plan.inventory.hosts)),
        )
    peers = {(0, workers - 1)} if workers > 1 else set()
    for index in range(1, workers):
        peers.update((index, peer) for peer in (0, index - 1, (index - 1) // 2))
    return ClusterCost(
        tf_config_bytes=len(config),
        ring_steps=2 * (workers - 1),
        most_connections=sum(0 in pair for pair in peers),
        connections=len(peers),
        num_ps_hosts=None,
    )
