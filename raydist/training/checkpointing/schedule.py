"""When a checkpoint is due, when the state is kept in memory, and which checkpoints --keep-best keeps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from raydist.spec import best
from raydist.spec.job import CheckpointEvery, CheckpointUnit
from raydist.storage.checkpoint_marker import Checkpoint
from raydist.storage.checkpoints import Evaluations

# How many checkpoints are kept for an evaluator that is slower than the training.
MAX_AWAITED = 5


def best_steps(committed: Sequence[Checkpoint], keep_best: str | None) -> set[int]:
    """Returns the best step of each `ctx.fit`; those whose markers do not name it count as one."""
    fits = {checkpoint.info.get("fit") for checkpoint in committed}
    steps = (best_step([one for one in committed if one.info.get("fit") == fit], keep_best) for fit in fits)
    return {step for step in steps if step is not None}


def best_step(committed: Sequence[Checkpoint], keep_best: str | None) -> int | None:
    """Returns the step with the best value of the metric of `keep_best`; None where no checkpoint has it.

    Of equal values the earliest is the best. A value that is not finite is never the best, nor is a
    checkpoint whose variables are not all finite.
    """
    if keep_best is None:
        return None
    metric, _ = best.parse_keep_best(keep_best)
    found = (
        (checkpoint.info.get("metrics", {}).get(metric), checkpoint.step)
        for checkpoint in committed
        if not checkpoint.info.get("non_finite")
    )
    return best.best_step(found, keep_best)


def with_evaluations(committed: Sequence[Checkpoint], evaluations: Evaluations) -> list[Checkpoint]:
    """Returns the checkpoints with what the evaluator found for them among their metrics."""
    return [
        dataclasses.replace(
            one,
            info={**one.info, "metrics": {**one.info.get("metrics", {}), **evaluations.get(one.name, {})}},
        )
        for one in committed
    ]


def awaited(committed: Sequence[Checkpoint], evaluations: Evaluations) -> list[Checkpoint]:
    """Returns the checkpoints of the newest `ctx.fit` that await the evaluator, oldest first."""
    newest_fit = max((one.info.get("fit", 0) for one in committed), default=0)
    of_fit = (one for one in committed if one.info.get("fit", 0) == newest_fit)
    return sorted((one for one in of_fit if one.name not in evaluations), key=age)


def awaited_steps(committed: Sequence[Checkpoint], evaluations: Evaluations) -> set[int]:
    """Returns the steps that may still turn out to be the best: at most `MAX_AWAITED`.

    The oldest is one of them, because the evaluator is at work on it; the others are the newest.
    """
    steps = [one.step for one in awaited(committed, evaluations)]
    return {*steps[:1], *steps[1:][-(MAX_AWAITED - 1) :]}


def last_steps(committed: Sequence[Checkpoint]) -> set[int]:
    """Returns the last step of each `ctx.fit` that had ended before the newest checkpoint."""
    newest = max(committed, key=age, default=None)
    return set() if newest is None else {step for _, step, _ in newest.info.get("ended_fits", ())}


def age(checkpoint: Checkpoint) -> tuple[int, int]:
    """Sorts checkpoints, the oldest first: by the attempt, then by the step."""
    return checkpoint.attempt, checkpoint.step


# What keeping may take of the time; with more of it, more calls go by in between.
MOST_SHARE = 0.03


class CheckpointSchedule:
    """When the next checkpoint is due. By steps and epochs all tasks decide alike, by seconds the chief."""

    def __init__(self, every: CheckpointEvery, *, each_epoch: bool = False) -> None:
        """Takes what is asked for; `each_epoch`: at each epoch's end as well, to find the best one."""
        self._every = every
        self._each_epoch = each_epoch

    def is_due(self, *, step_before: int, step: int) -> bool:
        """Whether a checkpoint is due within an epoch, after a call that took the run to `step`.

        A call may pass the step at which it is due where Keras runs the steps by itself. Elsewhere
        `steps_left` ends each call there.
        """
        count = self._every.count
        return self._every.unit is CheckpointUnit.STEPS and step_before // count < step // count

    def is_due_after(self, seconds: float) -> bool:
        """Whether one is due when the last one was that long ago."""
        return self._every.unit is CheckpointUnit.SECONDS and seconds >= self._every.count

    def steps_left(self, step: int) -> int:
        """Returns how many steps may run from `step` on before one is due, at least 1."""
        count = self._every.count
        return count - step % count if self._every.unit is CheckpointUnit.STEPS else 1 << 30

    def is_due_at_epoch_end(self, epoch: int) -> bool:
        """Whether one is due when `epoch` epochs are completed."""
        is_asked_for = self._every.unit is CheckpointUnit.EPOCHS and epoch % self._every.count == 0
        return is_asked_for or self._each_epoch


class KeepSchedule:
    """Decides after which calls of steps the state is kept, alike in all workers, once they have agreed."""

    def __init__(self) -> None:
        self._every: int | None = None
        self._num_calls = 0
        self._kept_at = 0
        self._has_kept = self._has_ended = False
        self._costs_s: list[float] = []

    def called(self) -> None:
        self._num_calls += 1

    @property
    def is_due(self) -> bool:
        return self._every is not None and self._num_calls - self._kept_at >= self._every

    def kept(self, cost_s: float) -> None:
        """Takes what it has cost this worker's training to keep a state after the last call."""
        self._kept_at = self._num_calls
        if self._has_kept:  # the first time traces
            self._costs_s.append(cost_s)
        self._has_kept = True

    @property
    def cost_s(self) -> float:
        """The least that it has cost this worker's training since `agreed`; 0 while that is not known.

        Infinite once nothing is kept any more.
        """
        return math.inf if self._has_ended else min(self._costs_s, default=0.0)

    def end(self) -> None:
        """Has all workers keep no more, once they agree again."""
        self._has_ended = True

    def agreed(self, cost_s: float, *, call_s: float) -> None:
        """Takes what all workers have agreed on: what keeping a state costs, and how long a call takes."""
        if math.isinf(cost_s):
            self._every = None
        elif cost_s > 0 and call_s > 0:
            self._every = max(1, round(cost_s / (MOST_SHARE * call_s)))
        else:
            self._every = self._every or 1
        self._costs_s.clear()
