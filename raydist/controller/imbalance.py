"""Whether other shares of the batch would make the steps of a run with --shares auto faster: it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raydist.planning.plan import Plan
from raydist.planning.shares import shares_of, slots_of
from raydist.spec.tasks import TaskId
from raydist.stragglers.step_times import StepTimes
from raydist.stragglers.watch import StragglerWatch

# How often shares are measured: a second time, as not all of a step grows with its rows.
_MOST_SHARES = 2
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


class Balancing:
    """The shares of one run's workers, as they are measured.

    Attributes:
      speeds: As the plan of the next attempt has them.
    """

    def __init__(self) -> None:
        self.speeds: Mapping[str, float] = {}
        self._num_left = _MOST_SHARES

    def find(self, plan: Plan, addresses: Mapping[TaskId, str], pace: StragglerWatch) -> Imbalance | None:
        """Returns what `imbalance_of` does, as long as shares are to be measured."""
        shares = plan.job.shares
        if shares is None or not shares.is_auto or not self._num_left:
            return None
        return imbalance_of(plan, addresses, pace.steady_times())

    def take(self, speeds: Mapping[str, float]) -> None:
        """Takes what the next attempt has."""
        self.speeds, self._num_left = speeds, self._num_left - 1

    def give_up(self) -> None:
        """Keeps the shares as they are."""
        self._num_left = 0


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
