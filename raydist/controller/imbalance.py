"""Whether other shares of the batch would make the steps of a run with --shares auto faster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raydist.planning.plan import Plan
from raydist.planning.shares import shares_of, slots_of
from raydist.spec.tasks import TaskId
from raydist.stragglers.step_times import StepTimes

# A restart has to make what the slowest worker computes in a step so many times shorter.
_LEAST_GAIN = 1.25


@dataclass(frozen=True, kw_only=True)
class Imbalance:
    """Speeds of the workers, by which their shares would let all end their steps together.

    Attributes:
      speeds: Rows per second of what `slots_of` names, relative to each other.
      gain: How many times shorter the longest own part of a step would be.
    """

    speeds: Mapping[str, float]
    gain: float

    def sentence(self) -> str:
        """Returns half a sentence."""
        least, most = min(self.speeds.values()), max(self.speeds.values())
        return (
            f"the fastest worker computes {most / least:.1f} times as many examples per second as the "
            "slowest, so --shares auto gives it more of each batch"
        )


def imbalance_of(
    plan: Plan, addresses: Mapping[TaskId, str], times: Mapping[TaskId, StepTimes]
) -> Imbalance | None:
    """Returns what would be gained; None where it is not worth a restart, or something was not measured.

    Args:
      addresses: Of the attempt's tasks.
      times: What steps take of late.
    """
    slots = slots_of({task: addresses[task] for task in plan.tasks if task in addresses})
    own_s = [times[task].own_s for task in slots if task in times]
    waits = [times[task].collective_wait_s for task in slots if task in times]
    is_measured = len(slots) == plan.num_workers == len(own_s) and None not in waits
    if not is_measured or plan.num_workers < 2 or min(own_s) <= 0:
        return None
    shares = shares_of(plan, addresses) or (1,) * len(slots)
    speeds = [share / seconds for share, seconds in zip(shares, own_s, strict=True)]
    gain = max(own_s) * sum(speeds) / sum(shares)
    if gain < _LEAST_GAIN:
        return None
    return Imbalance(speeds=dict(zip(slots.values(), speeds, strict=True)), gain=gain)
