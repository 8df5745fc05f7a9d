"""Decides on all workers alike by which LossRule one step trains, from the check of its first batch.

In come a `StepCheck` of this worker's and what its losses may be divided by. Out go the rule and the notes on
the run. loss_rules.py calls it for the steps of models, loop_rules.py for those of `ctx.train_steps`.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import RaydistError, UnsupportedError
from raydist.training.checks import dependence, findings, step_check, step_notes
from raydist.training.checks.findings import NOT_COMPUTED, Division, LossFinding, LossVerdict, StepFindings
from raydist.training.cluster import worker_shares
from raydist.training.cluster.collectives import findings_of_workers, is_alone
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.replicas import batch_slices, replica_share
from raydist.training.replicas.model_states import LossRule
from raydist.training.reporting import reporter
from raydist.training.user_code import captured_numbers

logger = logging.getLogger(__name__)


def checked(
    step: Callable[[Any], Any],
    batch: Any,
    *,
    name: object,
    strategy: tf.distribute.Strategy,
    compares: bool = True,
    **options: Any,
) -> step_check.StepCheck | None:
    """Returns what a check of a step finds, as far as it gets; None if the step fails.

    A single row is doubled: this tells sums from means, but says nothing about gradients.
    """
    check: step_check.StepCheck | None = None
    try:
        num_rows = int(batch_slices.num_rows(batch))
        if num_rows == 1 and compares:
            batch = batch_slices.doubled(batch)
        check = step_check.StepCheck(step, batch, strategy=strategy, **options)
        if compares and num_rows:
            check.measure()
        if num_rows == 1:
            check.errors[0] = NOT_COMPUTED  # two examples alike hide a comparison
    except Exception as error:  # the user's code, on a part of a batch; the step itself shows what is wrong
        report_failure(str(name), error)
    return check


def report_failure(what: str, error: Exception) -> None:
    """Reports that something could not be checked: the user's error in the log, raydist's as a note.

    For ValueErrors raydist has other notes: it raises these for what cannot be run or compared.
    """
    logger.info("%s could not be checked: %s", what, error, exc_info=error)
    frames = traceback.walk_tb(error.__traceback__)
    *_, (innermost, _) = frames
    is_own = str(innermost.f_globals.get("__name__")).startswith("raydist.")
    if is_own and not isinstance(error, (ValueError, RaydistError)):
        reporter.note(
            f"an error of raydist's own, {type(error).__name__}: {error}, kept {what} from being checked, so "
            "results may differ from one device's; report it with the log"
        )


def for_one_replica(
    function: Callable[[Any], Any], strategy: tf.distribute.Strategy, element: Any
) -> tuple[Callable[[Any], Any], Any]:
    """Returns a step for one replica's batch, as AutoGraph converts it, and that batch."""
    return batch_slices.on_own_rows(strategy, tf_private.converted(function), element)


def replica_counts(strategy: tf.distribute.Strategy, num_workers: int = 1) -> list[float]:
    """Returns the numbers of replicas and of workers, and what divides by them as a factor."""
    sizes = {float(one) for one in (strategy.num_replicas_in_sync, num_workers) if one > 1}
    return [*sizes, *(1 / one for one in sizes)]


def _divider(
    check: step_check.StepCheck | None,
    numbers: Sequence[captured_numbers.CapturedNumber],
    *,
    strategy: tf.distribute.Strategy,
    element: Any,
) -> tuple[str, Division]:
    """Returns the number by which the gradients are divided, of those that equal the number of replicas.

    The step is given others in its place. A number whose change the step does not survive is none that it
    divides its losses by: it is a size.
    """
    name, division = "", Division.NONE
    if check is None or not check.has_compared or int(batch_slices.num_rows(check.batch)) < 2:
        return name, division
    for number in numbers:
        # Twice and four times the number, or the half and the quarter of one that is a part of 1.
        factors = (1, 2, 4) if float(number.value) >= 1 else (1, 0.5, 0.25)
        try:
            found = check.divides_by(
                [for_one_replica(number.replaced(one), strategy, element)[0] for one in factors]
            )
        except Exception as error:  # the user's code, with another number
            logger.info("%s cannot be another number: %s", number.name, error)
            continue
        if found is Division.WHOLE or (found is Division.PART and division is Division.NONE):
            name, division = number.name, found
    return name, division


def find_rule(
    source: Any,
    check: step_check.StepCheck | None,
    *,
    strategy: tf.distribute.Strategy,
    numbers: Sequence[captured_numbers.CapturedNumber],
    element: Any,
    num_batches: int = 1,
    is_loop: bool = False,
    has_own_losses: bool = True,
    sums_itself: bool = False,
) -> tuple[LossRule, StepFindings]:
    """Decides by what all workers have found, and reports the rule. A collective.

    Args:
      numbers: Those that the step has from outside, by one of which it may divide its losses.
      element: The first element of the data.
      has_own_losses: Whether losses are the user's. Keras's are scaled, and only metrics are looked at.
      sums_itself: Whether the user's optimizer adds up gradients over replicas, which the check may not see.
    """
    number, division = _divider(check, numbers, strategy=strategy, element=element)
    # One decision for all: each worker has looked at other examples, or had too few.
    found = of_workers(strategy, check, division)
    refuse_equal_parts(source, found, strategy)
    if check is not None and check.needs_rows:
        reporter.note(step_notes.describe_rows(source))

    def set_metrics(rule: LossRule) -> None:
        # A worker that could not look does not know the metrics, and all have to treat them alike.
        if check is not None and found.has_compared == 1:
            set_takers_of_sums(check.rehearsal.means, found, rule)
            # Keras's own test step computes the losses by the same code.
            set_takers_of_sums(check.rehearsal.means, found, rule, is_evaluation=True)

    def is_shown(rule: LossRule) -> bool:
        return found.has_compared == 0 or found.shows(rule)

    if is_loop and found.is_without_updates:  # it evaluates, or changes its variables by itself
        set_metrics(LossRule.SCALED)
        if found.trains_by_hand:
            reporter.note(step_notes.describe_training_by_hand(source))
        return LossRule.SCALED, found
    parts = described_parts(strategy.num_replicas_in_sync, num_batches)
    if not has_own_losses:
        set_metrics(LossRule.SCALED)
        if not is_shown(LossRule.SCALED) and not found.is_random:
            reporter.note(step_notes.describe_shown(source, parts=parts))
        return LossRule.SCALED, found

    def are_examples_compared() -> bool:
        return findings_of_workers(strategy, [float(compares_examples(check))])[0] > 0

    finding = findings.of_gradients(
        found, number=number, sums_itself=sums_itself, are_examples_compared=are_examples_compared
    )
    logger.info("%s: %s, errors %s", source, finding, found.errors)
    refuse_equal_parts(source, found, strategy, finding=finding)
    set_metrics(finding.rule)
    reporter.note(step_notes.describe(finding, function=source, parts=parts))
    is_noted = finding.verdict in (LossVerdict.UNEQUAL, LossVerdict.UNKNOWN)
    if not is_shown(finding.rule) and not is_noted and not finding.is_random:
        reporter.note(step_notes.describe_shown(source, parts=parts))
    return finding.rule, found


def of_workers(
    strategy: tf.distribute.Strategy, check: step_check.StepCheck | None, division: Division = Division.NONE
) -> StepFindings:
    """Returns the mean of what all workers have found. A collective."""
    own = StepFindings() if check is None else check.findings(division)
    return own.joined(lambda numbers: findings_of_workers(strategy, numbers))


def refuse_equal_parts(
    source: Any, found: StepFindings, strategy: tf.distribute.Strategy, *, finding: LossFinding | None = None
) -> None:
    """Raises UnsupportedError for a step that is right only if all replicas have as many rows."""
    if not worker_shares.of(strategy):
        return
    if found.averages_replicas:
        raise UnsupportedError(step_notes.describe_equal_parts(source, "takes a mean over the replicas"))
    verdict = None if finding is None else finding.verdict
    may_divide = verdict is LossVerdict.UNEQUAL and found.divides_by_replicas and not found.is_random
    if verdict is LossVerdict.DIVIDED or may_divide:
        raise UnsupportedError(
            step_notes.describe_equal_parts(source, "may divide its losses by the number of replicas")
        )


def set_takers_of_sums(
    metrics: Sequence[Any], found: StepFindings, rule: LossRule, *, is_evaluation: bool = False
) -> None:
    """Takes a metric for one of sums if each of its scalars is one, for some of the workers.

    For the others it may have been zero, which shows nothing.
    """
    takes_sums = found.takes_sums[list(LossRule).index(rule)]
    others = {id(one) for one, is_sum in zip(metrics, takes_sums, strict=False) if not is_sum}
    takers = [one for one in metrics if id(one) not in others]
    replica_share.set_takers_of_sums(takers, rule, among=metrics, is_evaluation=is_evaluation)


def compares_examples(check: step_check.StepCheck | None) -> bool:
    """Whether what a step makes of an example depends on the others of its batch, as far as can be seen."""
    try:
        return check is not None and check.compares_examples()
    except Exception as error:  # the user's code, on a part of a batch
        logger.info("it could not be looked at whether losses compare examples: %s", error)
        return False


def described_parts(num_replicas: int, num_batches: int) -> str:
    """Returns what the gradients of an update are summed over, for notes."""
    batches = f"the {num_batches} batches of an update"
    if num_batches == 1:
        return f"the {num_replicas} replicas"
    return batches if num_replicas == 1 else f"the {num_replicas} replicas and {batches}"


def differs(variable: Any, check: step_check.StepCheck) -> bool:
    """Whether a variable holds what one replica, or one worker, assigns from its part of the batch.

    What was made outside of the scope has no aggregation, whatever it was given. Replicas of one worker add
    to it one after another, which is a sum.
    """
    if tf_private.is_of_strategy(variable):
        of_one = (tf.VariableAggregation.NONE, tf.VariableAggregation.ONLY_FIRST_REPLICA)
        return any(variable.aggregation == one for one in of_one)  # TensorFlow has two enums of them
    is_sum = variable.aggregation == tf.VariableAggregation.SUM and is_alone(check.strategy)
    return not (is_sum and dependence.builds_on_itself(variable, check.rehearsal.graph))


def refuse_drifting(source: Any, drifting: Sequence[Any], strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError if a step gives each worker other values of its variables: a collective.

    The checkpoint of such a run would not be that of any worker but the chief.
    """
    if is_alone(strategy) or is_virtual(strategy):
        return
    [share] = findings_of_workers(strategy, [float(bool(drifting))])
    if share > 0:
        raise UnsupportedError(step_notes.describe_assignments(source, drifting, is_note=False))
