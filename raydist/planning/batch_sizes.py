"""The batch sizes of a job for the planned number of replicas, and learning rates scaled with them."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeGuard

from raydist.data.order.steps import cut
from raydist.errors import UnsupportedError
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy
from raydist.spec.tasks import TaskId, TaskType
from raydist.spec.text import counted, suggest

# Which power of the ratio of batch sizes a rule takes: "linear" of Goyal et al., arXiv 1706.02677, and
# "sqrt" of Krizhevsky, arXiv 1404.5997.
RULES = {"linear": 1.0, "sqrt": 0.5}


@dataclass(frozen=True, kw_only=True)
class ScaledRate:
    """A learning rate, scaled.

    Attributes:
      base: What was found good for `base_batch_size`; `batch_size` is the global one.
      warmup_steps: Steps over which the rate goes from `base` to `scaled`; 0 begins with `scaled`.

    Raises:
      UnsupportedError: A value is out of its range.
    """

    base: float
    base_batch_size: int
    batch_size: int
    rule: str = "linear"
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("base", "base_batch_size", "batch_size"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 < value < math.inf):
                raise UnsupportedError(f"scale_learning_rate got {name}={value!r}; give a number above 0")
        if self.rule not in RULES:
            raise UnsupportedError(
                f"scale_learning_rate got rule={self.rule!r}; {suggest(str(self.rule), RULES)}"
            )
        steps = self.warmup_steps
        if not (_is_number(steps) and steps >= 0 and steps == int(steps)):
            raise UnsupportedError(
                f"scale_learning_rate got warmup_steps={steps!r}; give a number of steps, 0 for no warm-up"
            )

    @property
    def scaled(self) -> float:
        return float(self.base * (self.batch_size / self.base_batch_size) ** RULES[self.rule])

    def at(self, step: int) -> float:
        """Returns the rate of the step that has `step` steps before it."""
        if step >= self.warmup_steps:
            return self.scaled
        return self.base + (self.scaled - self.base) * step / self.warmup_steps

    def __str__(self) -> str:
        """Returns `0.2: 0.1 for batches of 64, scaled by the linear rule to 128`."""
        warmup = f", over {self.warmup_steps} steps of warm-up" if self.warmup_steps else ""
        return (
            f"{self.scaled:.6g}: {self.base:.6g} for batches of {self.base_batch_size}, scaled by the "
            f"{self.rule} rule to {self.batch_size}{warmup}"
        )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


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
            return f"{counted(self.size, 'example')} a step, {where}"
        counts = Counter(self.per_replica)
        if len(counts) == 1:
            cut = f"{self.per_replica[0]} on each of {len(self.per_replica)} replicas"
        else:
            first, *rest = sorted(counts.items(), reverse=True)
            more = ", ".join(f"{size or 'none'} on {count}" for size, count in rest)
            plural = "" if first[1] == 1 else "s"
            cut = f"uneven, {first[0]} on {first[1]} replica{plural}, {more}"
        return f"{counted(self.size, 'example')} a step: {cut}"

    def as_dict(self) -> dict[str, Any]:
        return {"global": self.size, "per_replica": list(self.per_replica)}


def batch_sizes_of(plan: Plan) -> BatchSizes | None:
    """Returns the sizes; None where the params do not tell, or the number of replicas is not known yet."""
    params = plan.job.params
    size, num_replicas = params.get("batch_size"), num_replicas_of(plan)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1 or num_replicas is None:
        return None
    # Virtual replicas have equal parts, of which workers have unequal numbers.
    shares = plan.job.shares if plan.job.virtual_replicas is None else None
    weights = () if shares is None else shares.weights
    spans = (cut(size, index, num_replicas, weights) for index in range(num_replicas))
    return BatchSizes(
        size=size,
        per_replica=tuple(end - first for first, end in spans),
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
