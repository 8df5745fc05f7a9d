"""What TensorFlow's own cluster costs, by the number of its tasks."""

from __future__ import annotations

from dataclasses import dataclass

from raydist.planning.plan import Plan
from raydist.planning.tf_config import cluster_spec, tf_config
from raydist.spec.job import Strategy
from raydist.spec.quantities import size_text
from raydist.spec.tasks import TaskType

# Linux's MAX_ARG_STRLEN: a longer variable keeps a process from starting others.
_MAX_VARIABLE_BYTES = 128 * 1024
# As long as most addresses get: IPv4, and a port of five digits.
_ADDRESS = "10.100.100.100:40000"


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
        if self.tf_config_bytes > _MAX_VARIABLE_BYTES:
            said[0] += (
                f", and Linux limits a variable to {size_text(_MAX_VARIABLE_BYTES)}: a task that starts "
                "other processes has to remove it from their environment"
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
