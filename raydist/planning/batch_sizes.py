"""What a job's params say of the sizes of its batches, for the planned number of replicas.

By convention the param `batch_size` is the global one, and `base_batch_size` the one that the param
`learning_rate` was found for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from raydist.errors import UnsupportedError
from raydist.planning.learning_rate import ScaledRate
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskId, TaskType


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """How large the batches of a run are.

    Attributes:
      size: Examples in a global batch.
      per_replica: Examples of each replica that takes part in one step.
      is_synchronous: Whether these are all replicas; else each worker makes steps of its own.
      rate: What `ctx.scale_learning_rate` returns by its linear rule; None where the params lack something.
    """

    size: int
    per_replica: tuple[int, ...]
    is_synchronous: bool
    rate: ScaledRate | None

    def __str__(self) -> str:
        """Returns `128 examples a step: 43 on 2 replicas, 42 on 1`."""
        if len(self.per_replica) == 1:
            where = "on one replica" if self.is_synchronous else "on one worker, asynchronously"
            return f"{_examples(self.size)} a step, {where}"
        counts = Counter(self.per_replica)
        if len(counts) == 1:
            cut = f"{self.per_replica[0]} on each of {len(self.per_replica)} replicas"
        else:
            first, *rest = sorted(counts.items(), reverse=True)
            more = ", ".join(f"{size or 'none'} on {count}" for size, count in rest)
            plural = "" if first[1] == 1 else "s"
            cut = f"uneven, {first[0]} on {first[1]} replica{plural}, {more}"
        return f"{_examples(self.size)} a step: {cut}"

    def as_dict(self) -> dict[str, Any]:
        return {"global": self.size, "per_replica": list(self.per_replica)}


def batch_sizes_of(plan: Plan) -> BatchSizes | None:
    """Returns the sizes; None where the params do not tell, or the number of replicas is not known yet."""
    params = plan.job.params
    size, num_replicas = params.get("batch_size"), num_replicas_of(plan)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1 or num_replicas is None:
        return None
    base, extra = divmod(size, num_replicas)
    return BatchSizes(
        size=size,
        per_replica=tuple(base + (index < extra) for index in range(num_replicas)),
        is_synchronous=plan.strategy is not Strategy.PARAMETER_SERVER,
        rate=_rate(params.get("learning_rate"), params.get("base_batch_size"), size),
    )


def num_replicas_of(plan: Plan) -> int | None:
    """Returns how many replicas take part in one step; None for a TPU, which only its tasks see."""
    num_gpus = plan.resources_of(TaskId(task_type=TaskType.WORKER, index=0)).num_gpus
    of_each = max(1, num_gpus)
    if plan.job.virtual_replicas is not None:
        return plan.job.virtual_replicas
    match plan.strategy:
        case Strategy.TPU:
            return None
        case Strategy.ONE_DEVICE:
            return 1
        case Strategy.MULTI_WORKER_MIRRORED:
            return plan.num_workers * of_each
        case Strategy.PARAMETER_SERVER:
            return of_each
        case _:
            return plan.devices or of_each


def _rate(learning_rate: Any, base_batch_size: Any, batch_size: int) -> ScaledRate | None:
    try:
        return ScaledRate(base=learning_rate, base_batch_size=base_batch_size, batch_size=batch_size)
    except UnsupportedError:  # params of those names that mean something else, or none
        return None


def _examples(count: int) -> str:
    return f"{count} example{'' if count == 1 else 's'}"
