"""The sentences about the losses, returned numbers and variables of a step: notes on a run, and refusals.

`describe` chooses among those about losses; each of the others has one sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from raydist.training.checks.findings import LossFinding, LossVerdict
from raydist.training.replicas.model_states import LossRule
from raydist.training.user_code.code_names import described


def describe(finding: LossFinding, *, function: Any, parts: str) -> str | None:
    """Returns the sentence for the run's notes; None where the step is right as it is written.

    There is one sentence at most; notes on other things have functions of their own. The order of the cases
    is their precedence: clipping first, then what is known for sure, then the causes of what could not be
    shown.

    Args:
      function: The user's function or class that the loss comes from.
      parts: Of what gradients are summed: `the 2 replicas`.
    """
    where = described(function)
    if finding.clips and finding.verdict is not LossVerdict.UNKNOWN and not finding.reduces_itself:
        return describe_clipping(function, done=f"{_done(finding)} {parts}")
    is_right = finding.verdict in (LossVerdict.EITHER, LossVerdict.SCALED, LossVerdict.SUM)
    if is_right and not finding.holds_for_first_batch_only:
        return None
    if finding.verdict is LossVerdict.LOCAL_MEAN and not finding.holds_for_first_batch_only:
        return (
            f"the losses in {where} are means over a replica's part of the batch, so gradients are averaged "
            f"over {parts} by their number of examples, as one device does; if they are divided by a number "
            "of replicas that was read outside of it, use --no-check-equality"
        )
    if finding.verdict is LossVerdict.DIVIDED:
        is_other = "another number" if finding.rule is LossRule.LOCAL_MEAN else "the number of replicas"
        return (
            f"{_unknown(where)}, because it divides its losses by {finding.number}, or multiplies them with "
            "it, which it has from outside and which may be the number of replicas, or one divided by it; "
            f"gradients are {_done(finding)} {parts}, which is right only if it is {is_other}. If it is the "
            "number of replicas, read ctx.strategy.num_replicas_in_sync inside of the function; if not, "
            "write the number into the function. What it returns is shown as the mean over the replicas"
        )
    if finding.reduces_itself:
        return (
            f"{_unknown(where)}, because it adds them up "
            f"over {parts} by itself; if its losses are means over a replica's part, "
            "divide them by the number of replicas; an optimizer adds gradients up by itself, unless it is "
            "one of tf_keras with skip_gradients_aggregation=True"
        )
    is_averaged = finding.rule is LossRule.LOCAL_MEAN
    done = _done(finding)
    if finding.holds_for_first_batch_only:
        remedy = "use a loss of Keras's with a mask or sample_weight, or divide by the batch size"
        if finding.is_of_one_size:
            return (
                f"{_unknown(where)} for every batch, because it reads how many rows a batch has from a "
                f"shape; gradients are {done} {parts}: {remedy}, by tf.shape(batch)[0]"
            )
        return (
            f"{_unknown(where)} for every batch, because it divides by a value of all examples, such as the "
            "sum of a mask or of weights, or does something else to one that is not linear, and each replica "
            f"has that of its own part; gradients are {done} {parts}: {remedy}"
        )
    remedy = (
        "if it divides by the number of replicas or by the global batch size, use --no-check-equality"
        if is_averaged
        else "if its losses are means over a replica's part, divide them by the number of replicas"
    )
    if finding.compares_examples:
        return (
            f"{_unknown(where)}, because it compares the examples of a batch, each replica those of its own "
            f"part alone, so results depend on the number of replicas; gradients are {done} {parts}: {remedy}"
        )
    if finding.has_effects:
        cause = "it calls Python or changes a state to compute them, which raydist does not do in advance"
    elif finding.verdict is LossVerdict.UNKNOWN:
        cause = "it could not be run on a part of a batch, or its first gradients are zero or not finite"
    elif finding.is_random:
        cause = "the step draws random numbers"
    else:
        cause = "its losses depend on how a batch is divided"
    return f"{_unknown(where)}, because {cause}; gradients are {done} {parts}: {remedy}"


def _unknown(where: str) -> str:
    return f"whether {where} gives the gradients of one device could not be shown"


def _done(finding: LossFinding) -> str:
    return "averaged over" if finding.rule is LossRule.LOCAL_MEAN else "summed over"


def describe_rows(function: Any) -> str:
    return (
        f"{described(function)} reads how many rows a batch has from a shape, which does not say it if the "
        "replicas cannot have as many of every batch, so results may differ from one device's; use "
        "tf.shape(batch)[0]"
    )


def describe_training_by_hand(function: Any) -> str:
    return (
        f"{_unknown(described(function))}, because it gives them to no optimizer; the aggregation of its "
        "variables says what is done with the values of the replicas: MEAN is right for losses that are "
        "means over a replica's part, and SUM for those that are divided by the global batch size"
    )


def describe_evaluation(function: Any, *, num_replicas: int, is_known: bool) -> str:
    """Returns the sentence for losses of a test step that may not be those of one device.

    Args:
      is_known: Whether the step could be run on a part of a batch.
    """
    if not is_known:
        return (
            f"whether evaluations show the losses in {described(function)} as one device does could not be "
            "shown, because they could not be computed for a part of a batch"
        )
    return (
        f"what evaluations show of the losses in {described(function)} depends on how a batch is divided "
        f"over the {num_replicas} replicas, so it may differ from what one device shows"
    )


def describe_shown(function: Any, *, parts: str) -> str:
    return (
        f"what {described(function)} returns, or gives to a Mean metric, depends on how a batch is divided "
        f"over {parts}, so what is shown of it may differ from one device's; weights do not depend on it"
    )


def describe_returned(function: Any, names: Collection[str], *, parts: str) -> str:
    return (
        f"{described(function)} returns {', '.join(names)}, which is neither the mean nor the sum over the "
        f"examples of every batch: the mean over {parts} is shown, which may differ from one device's; "
        "weights do not depend on it"
    )


def describe_returned_zero(function: Any, names: Collection[str], *, parts: str) -> str:
    return (
        f"{described(function)} returned 0 as {', '.join(names)} for the first batch, so whether that is a "
        f"sum or a mean over the examples could not be shown: the mean over {parts} is shown, which may "
        "differ from one device's; weights do not depend on it"
    )


def describe_returned_unknown(function: Any, *, parts: str) -> str:
    return (
        f"whether one device shows what {described(function)} returns could not be shown: the mean over "
        f"{parts} is shown"
    )


def describe_draws(function: Any) -> str:
    return (
        f"{described(function)} draws random numbers, so results repeat only with the same number of replicas"
    )


def describe_clipping(function: Any, *, done: str) -> str:
    """Returns the sentence for a step that clips its gradients.

    Args:
      done: What is done with them afterwards: `averaged over the 2 replicas`.
    """
    return (
        f"{described(function)} clips or rescales its gradients by itself, on each replica before they are "
        f"{done}, so results depend on the number of replicas. Give the optimizer clipnorm, global_clipnorm "
        "or clipvalue, which clip the gradients of the whole batch"
    )


def describe_assignments(function: Any, variables: Sequence[Any], *, is_note: bool) -> str:
    names = ", ".join(str(variable.name) for variable in variables) or "variables"
    effect = (
        "the replicas' values differ and results depend on their number"
        if is_note
        else "each worker would have values of its own, of which checkpoints hold the chief's alone"
    )
    return (
        f"{described(function)} assigns to {names} on each replica, from its own part of the batch, so "
        f"{effect}; make them in the scope with aggregation=tf.VariableAggregation.MEAN or SUM, or assign "
        "what tf.distribute.get_replica_context().all_reduce returns. To add up the gradients of several "
        "batches, use ctx.fit(..., accumulate=K) in their place"
    )


def describe_equal_parts(function: Any, cause: str) -> str:
    return (
        f"{described(function)} {cause}, and with --shares each has another number of rows; divide by the "
        "global batch size and add up over the replicas, or leave --shares out"
    )


def describe_summed_assignments(function: Any, variables: Sequence[Any]) -> str:
    names = ", ".join(str(variable.name) for variable in variables)
    return (
        f"{_unknown(described(function))}, because they depend on {names}, to which it assigns, and the "
        "values that the replicas assign are added up; use aggregation=tf.VariableAggregation.MEAN for a mean"
    )
