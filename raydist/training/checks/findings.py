"""Decides from the measured gradients of a step how its losses are written: pure functions.

In come the numbers that step_check.py measured on each worker (`StepFindings`), of which step_rules.py takes
the mean over the workers. Out go the rule to train by and a `LossFinding`, of which step_notes.py makes the
sentence.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from raydist.training.replicas.model_states import LossRule

# Relative difference of gradients that are equal up to rounding. Those that are not differ by a factor of 2.
TOLERANCE = 1e-3
# In float64, where Keras's epsilons are what is left.
TOLERANCE_OF_DOUBLES = 1e-5
# In types with few digits, in which a batch and its parts are rounded differently.
TOLERANCE_OF_HALVES = {"float16": 4e-3, "bfloat16": 3e-2}
# If the smaller error of two rules is below this, its rule is right: the other one's is about 1.
_CLEAR = 0.3
# Stands for "could not be computed" where workers exchange their errors as numbers.
NOT_COMPUTED = 1e9
# Metrics of a step whose scalars are compared, and numbers that a loop's step returns.
MOST_MEANS, MOST_RETURNED = 16, 64


class LossVerdict(enum.Enum):
    """What the check found.

    EITHER: Under the rules scaled and local mean the gradients equal one device's.
    SCALED, LOCAL_MEAN, SUM: Under that rule they do.
    DIVIDED: Under the rule local mean they do, but they are divided by a number that may be that of replicas.
    UNEQUAL: Under none; the losses compare examples, depend on how a batch is divided, or on random numbers.
    UNKNOWN: The step could not be run on a part of a batch.
    """

    EITHER = "either"
    SCALED = "scaled"
    LOCAL_MEAN = "local mean"
    SUM = "sum"
    DIVIDED = "divided"
    UNEQUAL = "unequal"
    UNKNOWN = "unknown"


class Division(enum.Enum):
    """What of the gradients is divided by a number: all, a part, or nothing."""

    WHOLE = "whole"
    PART = "part"
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class LossFinding:
    """The verdict, and the rule to train by.

    Attributes:
      is_random: Whether the step draws random numbers, so that gradients differ by them.
      reduces_itself: Whether the step adds up its gradients over replicas by itself.
      compares_examples: Whether what it makes of an example depends on the others of the batch.
      holds_for_first_batch_only: Whether other batches may give another verdict, as with a mean over a mask.
      is_of_one_size: Whether that is so because the step could be looked at for batches of one size alone.
      number: Of the verdict DIVIDED, what it may be divided by.
      has_effects: Whether the step calls Python, for example, so that it was not run.
      clips: Whether the step clips its gradients, for example, before they are summed.
    """

    verdict: LossVerdict
    rule: LossRule
    is_random: bool = False
    reduces_itself: bool = False
    compares_examples: bool = False
    holds_for_first_batch_only: bool = False
    is_of_one_size: bool = False
    number: str = ""
    has_effects: bool = False
    clips: bool = False


_NUM_RULES = len(LossRule)


@dataclass(frozen=True, kw_only=True)
class StepFindings:
    """What a worker has found out about a step; after `joined` the mean over the workers.

    Of a flag that is the fraction of workers where it is true. Each field is a number or an array of numbers:
    `joined` sends all of them to all workers, so a new field is exchanged by itself.

    Attributes:
      errors: Under each rule those of the gradients, and of the gradients that tapes gave, `[2, rules]`; 0
        where it is not known.
      is_known: `[2, rules]`.
      takes_sums, shows_batch: See `StepCheck`; `[rules, MOST_MEANS]` and `[rules]`.
      has_compared: Whether those two are known.
      tolerance: See `Rehearsal`; 0 where there is none. `is_checked`: whether there is one.
      returned: Of the numbers that a loop's step returns, by rule, whether each is a sum, a mean, or neither,
        `[rules, 3, MOST_RETURNED]`. All three are false for a 0, which may be a sum or a mean.
      divides_by_replicas: Whether it may, as it has their number. `averages_replicas`: whether it takes means
        over them.
      returned_varies: Whether it may be something else for other batches. `returned_fixed`: whether it does
        not depend on the batch.
    """

    errors: np.ndarray = field(default_factory=lambda: np.zeros([2, _NUM_RULES]))
    is_known: np.ndarray = field(default_factory=lambda: np.zeros([2, _NUM_RULES]))
    takes_sums: np.ndarray = field(default_factory=lambda: np.zeros([_NUM_RULES, MOST_MEANS]))
    shows_batch: np.ndarray = field(default_factory=lambda: np.zeros([_NUM_RULES]))
    returned: np.ndarray = field(default_factory=lambda: np.zeros([_NUM_RULES, 3, MOST_RETURNED]))
    returned_varies: np.ndarray = field(default_factory=lambda: np.zeros([MOST_RETURNED]))
    returned_fixed: np.ndarray = field(default_factory=lambda: np.zeros([MOST_RETURNED]))
    has_compared: float = 0.0
    asks_for_replicas: float = 0.0
    divides_by_replicas: float = 0.0
    averages_replicas: float = 0.0
    is_random: float = 0.0
    reduces_itself: float = 0.0
    reduces_twice: float = 0.0
    is_without_updates: float = 0.0
    trains_by_hand: float = 0.0
    clips_gradients: float = 0.0
    clips_batch_gradient: float = 0.0
    tolerance: float = 0.0
    is_checked: float = 0.0
    holds_for_first_batch_only: float = 0.0
    is_of_one_size: float = 0.0
    has_effects: float = 0.0
    may_divide: float = 0.0
    may_divide_part: float = 0.0

    def joined(self, mean_of: Callable[[list[float]], Sequence[float]]) -> StepFindings:
        own = {one.name: np.asarray(getattr(self, one.name), float) for one in dataclasses.fields(self)}
        means = np.asarray(mean_of(np.concatenate([*map(np.ravel, own.values())]).tolist()))
        parts = np.split(means, np.cumsum([one.size for one in own.values()])[:-1])
        shaped: dict[str, Any] = {
            name: part.reshape(one.shape) for (name, one), part in zip(own.items(), parts, strict=True)
        }
        return StepFindings(**shaped)

    def shows(self, rule: LossRule) -> bool:
        """Whether the workers that could compare have all found that a rule shows one device's values."""
        index = list(LossRule).index(rule)
        # What takes sums is known only if all workers could.
        is_known = self.has_compared == 1 or not self.takes_sums[index].any()
        return is_known and bool(np.isclose(self.shows_batch[index], self.has_compared))


def finding_of_errors(
    errors: Sequence[float], found: StepFindings, *, sums_itself: bool = False
) -> LossFinding:
    """Returns what the errors under the rules scaled, local mean and sum say. Some may be NOT_COMPUTED.

    Where no rule is right, the nearest one is taken. If all errors are large, the losses are assumed to be
    means, or scaled in a step that asks for the number of replicas or has it from outside.

    Args:
      sums_itself: See `of_gradients`.
    """

    def finding(verdict: LossVerdict, rule: LossRule) -> LossFinding:
        return LossFinding(
            verdict=verdict, rule=rule, is_random=bool(found.is_random), reduces_itself=reduces
        )

    reduces_itself = sums_itself or found.reduces_itself > 0
    reduces = reduces_itself or found.reduces_twice > 0
    scaled, local, summed = errors
    is_scaled, is_local, is_summed = (one <= found.tolerance / max(found.is_checked, 1e-9) for one in errors)
    if reduces:
        # Nobody weights its gradients after it, so only losses that are scaled are known to be right.
        is_right = reduces_itself and is_scaled
        return finding(LossVerdict.SCALED if is_right else LossVerdict.UNEQUAL, LossRule.SCALED)
    if is_local and (found.may_divide or found.may_divide_part) and not found.asks_for_replicas:
        return finding(LossVerdict.DIVIDED, LossRule.SCALED if found.may_divide else LossRule.LOCAL_MEAN)
    if is_scaled and is_local and not found.asks_for_replicas:
        # Keras's own losses. What the step shows of them is then not scaled either. A step that asks for
        # the number of replicas may have a term whose weight is 0 as yet.
        return finding(LossVerdict.EITHER, LossRule.LOCAL_MEAN)
    for rule, is_right in zip(LossRule, (is_scaled, is_local, is_summed), strict=True):
        if is_right:
            return finding(LossVerdict(rule.value), rule)
    verdict = LossVerdict.UNKNOWN if max(scaled, local) >= NOT_COMPUTED else LossVerdict.UNEQUAL
    may_divide = found.may_divide or found.asks_for_replicas
    if may_divide if min(scaled, local) > _CLEAR else scaled < local:
        return finding(verdict, LossRule.SCALED)
    is_sum = not may_divide and summed < min(scaled, local)
    return finding(verdict, LossRule.SUM if is_sum else LossRule.LOCAL_MEAN)


def of_gradients(
    found: StepFindings, *, number: str, sums_itself: bool, are_examples_compared: Callable[[], bool]
) -> LossFinding:
    """Returns what the gradients of all workers say.

    Args:
      number: What they may be divided by; empty where nothing is known.
      sums_itself: Whether the user's optimizer adds up gradients over replicas, which the check may not see.
      are_examples_compared: Whether losses compare examples. A collective: it is called where nothing else
        says why gradients differ, which `found` decides alike on all workers.
    """
    means, before_clipping = np.divide(
        found.errors, found.is_known, out=np.full_like(found.errors, NOT_COMPUTED), where=found.is_known > 0
    ).tolist()
    finding = finding_of_errors(means, found, sums_itself=sums_itself)
    if found.clips_gradients:
        if finding.verdict is LossVerdict.UNEQUAL:
            # Clipping hides how the losses are written. The gradients before it show that.
            before = finding_of_errors(before_clipping, found, sums_itself=sums_itself)
            is_clear = before.verdict is not LossVerdict.UNEQUAL and not found.asks_for_replicas
            finding = dataclasses.replace(finding, rule=before.rule if is_clear else finding.rule)
        is_of_sums = found.clips_batch_gradient > 0 or finding.verdict is LossVerdict.UNEQUAL
        finding = dataclasses.replace(finding, clips=is_of_sums)
    is_found = finding.verdict not in (LossVerdict.UNEQUAL, LossVerdict.UNKNOWN, LossVerdict.DIVIDED)
    is_open = finding.verdict is LossVerdict.UNEQUAL and not (
        finding.is_random or finding.reduces_itself or finding.clips
    )
    return dataclasses.replace(
        finding,
        number=number or "a number",
        has_effects=bool(found.has_effects) and finding.verdict is LossVerdict.UNKNOWN,
        holds_for_first_batch_only=is_found and bool(found.holds_for_first_batch_only),
        is_of_one_size=bool(found.is_of_one_size),
        compares_examples=is_open and are_examples_compared(),
    )


def rule_of_evaluation(found: StepFindings) -> LossRule | None:
    """Returns the rule by which a test step shows one device's losses; None where none is known to."""
    # Of losses of Keras's own either of the first two is right; what else the step shows is then not scaled.
    by_preference = (LossRule.LOCAL_MEAN, LossRule.SCALED, LossRule.SUM)
    return next((one for one in by_preference if found.has_compared == 1 and found.shows(one)), None)


@dataclass(frozen=True, kw_only=True)
class Returned:
    """The names of numbers that a loop's step returns, by what they are; means are in none of the lists.

    Attributes:
      sums: Sums over the examples of a batch.
      unlike: Neither sums nor means for every batch.
      zero: 0 for the first batch, so that it is not known.
    """

    sums: list[str]
    unlike: list[str]
    zero: list[str]


def kinds_of_returned(found: StepFindings, names: Sequence[str], rule: LossRule) -> Returned:
    """Returns what the numbers that a loop's step returns are, if it runs by a rule."""
    is_sum, is_mean, is_neither = found.returned[list(LossRule).index(rule)] > 0
    varies, is_fixed = found.returned_varies > 0, found.returned_fixed > 0
    kinds = Returned(sums=[], unlike=[], zero=[])
    for index, name in enumerate(names):
        if index >= MOST_RETURNED or is_neither[index] or varies[index] or (is_sum & is_mean)[index]:
            kinds.unlike.append(name)
        elif is_sum[index]:
            kinds.sums.append(name)
        elif not is_mean[index] and not is_fixed[index]:
            kinds.zero.append(name)
    return kinds
