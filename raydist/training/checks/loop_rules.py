"""The step of a loop, `ctx.train_steps`: by which LossRule it trains, and the numbers that it returns.

In come the step of the user's own and the first element of its data; out goes a `LoopRule`, and notes to the
run. trainers/custom_loop.py calls it once, before the step is traced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.checks import (
    findings,
    layer_notes,
    rehearsal,
    step_check,
    step_notes,
    step_rules,
)
from raydist.training.checks.findings import StepFindings
from raydist.training.replicas import batch_slices, replica_share
from raydist.training.replicas.model_states import LossRule
from raydist.training.reporting import reporter
from raydist.training.user_code import captured_numbers
from raydist.training.user_code.code_names import described

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoopRule:
    """How the step of a loop is run.

    Attributes:
      sums: The numbers that it returns which are sums over the examples of a batch; of others the mean over
        replicas is shown.
      has_sums_in_metrics: Whether it gives sums to `Mean` metrics, which then count them as such.
    """

    rule: LossRule = LossRule.SCALED
    sums: frozenset[str] = frozenset()
    has_sums_in_metrics: bool = False


def rule_of_loop(
    step_fn: Callable[[Any], Any],
    element: Any,
    *,
    strategy: tf.distribute.Strategy,
    num_workers: int,
    knows_rows: bool,
) -> LoopRule:
    """Finds and reports the rule of a loop's step by its first batch. A collective, before it is traced.

    Args:
      knows_rows: Whether the step can read from their shapes how many rows batches have.
    """
    num_replicas = strategy.num_replicas_in_sync
    if num_replicas == 1 or not rehearsal.is_enabled():
        return LoopRule()

    step, batch = step_rules.for_one_replica(step_fn, strategy, element)
    names: list[str] = []

    def numbers_in(returned: Any) -> list[tf.Tensor]:
        found = scalars_of(returned, step_fn=step_fn)
        names[:] = found
        return list(found.values())

    numbers = captured_numbers.found_in(step_fn, step_rules.replica_counts(strategy, num_workers))
    # Those that are known to be it are asked for, as that of the strategy is.
    asked = [one for one in numbers if one.is_of_context and one.value == num_replicas]
    numbers = [one for one in numbers if one not in asked]
    variants = {
        count: step_rules.for_one_replica(_with_replicas(step_fn, asked, count), strategy, element)[0]
        for count in (1, 2)
        if asked
    }
    check = step_rules.checked(
        step,
        batch,
        name=step_fn,
        strategy=strategy,
        numbers_in=numbers_in,
        variants=variants,
        knows_rows=knows_rows,
    )
    rule, found = step_rules.find_rule(
        step_fn, check, strategy=strategy, is_loop=True, numbers=numbers, element=element
    )
    parts = step_rules.described_parts(num_replicas, 1)
    drifting = [] if check is None else _drifting_in_loop(check)
    # Of others there is a note: a loop may mean them to be a replica's own.
    step_rules.refuse_drifting(step_fn, [one for one in drifting if one.trainable], strategy)
    if check is not None:
        if check.rehearsal.draws_elsewhere:
            reporter.note(step_notes.describe_draws(step_fn))
        if layers := layer_notes.normed_by_replica(check.rehearsal.normalising, strategy):
            reporter.note(layer_notes.describe_norms(layers))
        if drifting:
            reporter.note(step_notes.describe_assignments(step_fn, drifting, is_note=True))
        if summed := _summed_in_loop(check):
            reporter.note(step_notes.describe_summed_assignments(step_fn, summed))
    part = strategy.experimental_local_results(element)[0]
    results = [] if check is None or isinstance(part, batch_slices.EvenSlice) else _metrics_returned(check)
    sums = _sums_returned(step_fn, names, found, rule, results=results, parts=parts)
    means = [] if check is None else check.rehearsal.means
    return LoopRule(
        rule=rule,
        sums=frozenset(sums),
        has_sums_in_metrics=any(map(replica_share.takes_sums, means)),
    )


def _with_replicas(
    step_fn: Any, asked: Sequence[captured_numbers.CapturedNumber], num_replicas: int
) -> Callable[[Any], Any]:
    """Returns a step that has another number of replicas from outside."""
    function = step_fn
    for number in asked:
        function = number.replaced(num_replicas / number.value, function=function)
    return function


def _metrics_returned(check: step_check.StepCheck) -> list[bool]:
    """Whether each number that a loop's step returns is made of what metrics have counted on this replica.

    That of the batches before has other shares of the replicas than this batch if they are uneven.
    """
    return check.rehearsal.returned_depends_on(
        [one for one in check.rehearsal.fed if tf_private.is_synchronized_on_read(one)]
    )


def _sums_returned(
    step_fn: Any,
    names: Sequence[str],
    found: StepFindings,
    rule: LossRule,
    *,
    results: Sequence[bool],
    parts: str,
) -> list[str]:
    """Returns which of the numbers that a loop's step returns are sums; notes those that are shown wrong.

    Args:
      results: See `_metrics_returned`; empty where batches are even.
    """
    if found.has_compared == 0:
        reporter.note(step_notes.describe_returned_unknown(step_fn, parts=parts))
        return []
    kinds = findings.kinds_of_returned(found, names, rule)
    of_metrics = {name for name, is_result in zip(names, results, strict=False) if is_result}
    unlike = [
        one for one in names if one in kinds.unlike or one in of_metrics.difference(kinds.sums, kinds.zero)
    ]
    if unlike and not found.is_random:
        reporter.note(step_notes.describe_returned(step_fn, unlike, parts=parts))
    if kinds.zero:
        reporter.note(step_notes.describe_returned_zero(step_fn, kinds.zero, parts=parts))
    return kinds.sums


def _drifting_in_loop(check: step_check.StepCheck) -> list[Any]:
    """Returns the variables to which each replica assigns a value of its own, on which results depend."""
    weights = [one for one in check.rehearsal.fed if one.trainable]
    return [
        one
        for one in (*_assigned_in_loop(check), *weights)
        if (
            check.rehearsal.gradients_depend_on(one)
            if tf_private.is_synchronized_on_read(one) and tf_private.is_of_strategy(one)
            else step_rules.differs(one, check)
        )
    ]


def _summed_in_loop(check: step_check.StepCheck) -> list[Any]:
    """Returns the variables that become the sum of what replicas assign, on which gradients depend."""
    return [
        one
        for one in _assigned_in_loop(check)
        if one.aggregation == tf.VariableAggregation.SUM
        and not tf_private.is_synchronized_on_read(one)
        and check.rehearsal.gradients_depend_on(one)
    ]


def _assigned_in_loop(check: step_check.StepCheck) -> list[Any]:
    # Without moving statistics, which another note names, or which are the same on all replicas.
    moving = tf_private.ids_of(
        [variable for layer in check.rehearsal.normalising for variable in layer.variables]
    )
    return [one for one in check.rehearsal.fed if not one.trainable and id(one) not in moving]


def scalars_of(returned: Any, *, step_fn: Any) -> dict[str, tf.Tensor]:
    """Returns the numbers that a step returned, by name and in the order of names.

    Those of a dict in the dict are named `outer/inner`, bools are 0 or 1, and of an array it is the mean.

    Raises:
      UnsupportedError: It is not a dict of numbers.
    """
    if not isinstance(returned, Mapping):
        raise UnsupportedError(
            f"step_fn {described(step_fn)} returned {type(returned).__name__}; return a dict of scalars, "
            "such as {'loss': loss}"
        )
    found = {name: _number(name, value, step_fn) for name, value in _leaves(returned)}
    if not found:
        raise UnsupportedError(
            f"step_fn {described(step_fn)} returned an empty dict; return at least one scalar, such as "
            "{'loss': loss}"
        )
    return dict(sorted(found.items()))


def _leaves(returned: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in returned.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def _number(name: str, value: Any, step_fn: Any) -> tf.Tensor:
    try:
        tensor = tf.convert_to_tensor(value.flat_values if isinstance(value, tf.RaggedTensor) else value)
    except (TypeError, ValueError):
        kind = type(value).__name__
    else:
        if tensor.dtype.is_floating:
            return tf.reduce_mean(tensor)
        if tensor.dtype.is_bool or tensor.dtype.is_integer:
            return tf.reduce_mean(tf.cast(tensor, tf.float64))
        kind = f"a tensor of type {tensor.dtype.name}"
    raise UnsupportedError(
        f"step_fn {described(step_fn)} returned {kind} as {name!r}; return a number, or leave it out"
    )
