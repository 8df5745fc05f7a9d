"""What the errors of a step's gradients say about how its losses are written; see loss_check.py."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

# Relative difference of gradients that are equal up to rounding. Those that are not differ by a factor of 2.
TOLERANCE = 1e-3
# In float64, where Keras's epsilons are what is left.
TOLERANCE_OF_DOUBLES = 1e-5
# Below it the nearer one of two rules is surely right: the other one's error is about 1.
_CLEAR = 0.3
# Stands for "could not be computed" where workers exchange their errors as numbers.
UNKNOWN = 1e9


class LossRule(enum.Enum):
    """How the losses of a training step are written.

    SCALED: As `tf.distribute` asks for: Keras's losses scale themselves by the replica's share of the global
      batch, others divide by the global batch size or are sums. Gradients are summed over replicas.
    LOCAL_MEAN: As for one device: means over the replica's own examples. Keras's losses do not scale
      themselves, and the optimizer weights each replica's gradients by its share.
    SUM: As for one device: sums over the replica's own examples. Nobody scales them.
    """

    SCALED = "scaled"
    LOCAL_MEAN = "local mean"
    SUM = "sum"


class LossVerdict(enum.Enum):
    """What the check found.

    EITHER: Under the rules scaled and local mean the gradients equal one device's.
    SCALED, LOCAL_MEAN, SUM: Under that rule they do.
    DIVIDED: Under the rule local mean they do, unless they are divided by a number that is that of replicas.
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


@dataclass(frozen=True, kw_only=True)
class LossFinding:
    """The verdict, and the rule to train by.

    Attributes:
      is_random: Whether the step draws random numbers, so that gradients differ by them.
      reduces_itself: Whether the step adds up its gradients over replicas by itself.
      compares_examples: Whether what it makes of an example depends on the others of the batch.
    """

    verdict: LossVerdict
    rule: LossRule
    is_random: bool = False
    reduces_itself: bool = False
    compares_examples: bool = False


def decide(
    errors: Sequence[float],
    *,
    tolerance: float = TOLERANCE,
    is_random: bool = False,
    asks_for_replicas: bool = False,
    reduces_itself: bool = False,
    reduces_twice: bool = False,
    is_loop: bool = False,
    may_divide: bool = False,
) -> LossFinding:
    """Returns what to make of the errors under the rules scaled, local mean and sum; UNKNOWN if not known.

    Where no rule is right, the nearest one is taken. If much noise leaves it open, a loop's step, and one
    that asks for the number of replicas, are taken to have scaled their losses.

    Args:
      may_divide: Whether the step has the number of replicas from outside, and may divide by it.
    """
    scaled, local, summed = errors
    if reduces_twice and not reduces_itself:
        return LossFinding(
            verdict=LossVerdict.UNEQUAL, rule=LossRule.SCALED, is_random=is_random, reduces_itself=True
        )
    if reduces_itself:
        # Nobody weights its gradients after it, so only losses that are scaled are known to be right.
        verdict = LossVerdict.SCALED if scaled <= tolerance else LossVerdict.UNEQUAL
        return LossFinding(verdict=verdict, rule=LossRule.SCALED, is_random=is_random, reduces_itself=True)
    if max(scaled, local) <= tolerance and not asks_for_replicas:
        # Keras's own losses. What the step shows of them is then not scaled either. A step that asks for
        # the number of replicas may have a term whose weight is 0 as yet.
        return LossFinding(verdict=LossVerdict.EITHER, rule=LossRule.LOCAL_MEAN, is_random=is_random)
    if scaled <= tolerance:
        return LossFinding(verdict=LossVerdict.SCALED, rule=LossRule.SCALED, is_random=is_random)
    if local <= tolerance and may_divide:
        return LossFinding(verdict=LossVerdict.DIVIDED, rule=LossRule.SCALED, is_random=is_random)
    if local <= tolerance:
        return LossFinding(verdict=LossVerdict.LOCAL_MEAN, rule=LossRule.LOCAL_MEAN, is_random=is_random)
    if summed <= tolerance:
        return LossFinding(verdict=LossVerdict.SUM, rule=LossRule.SUM, is_random=is_random)
    verdict = LossVerdict.UNKNOWN if max(scaled, local) >= UNKNOWN else LossVerdict.UNEQUAL
    is_scaled = is_loop or asks_for_replicas if min(scaled, local) > _CLEAR else scaled < local
    if not is_scaled and not asks_for_replicas and summed < min(scaled, local):
        rule = LossRule.SUM
    else:
        rule = LossRule.SCALED if is_scaled else LossRule.LOCAL_MEAN
    return LossFinding(verdict=verdict, rule=rule, is_random=is_random)
