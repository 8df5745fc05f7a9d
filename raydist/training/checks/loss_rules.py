"""Which LossRule each model trains by; found out before its first step on several replicas.

In come a model, its step as its Keras traces it, and the first element of its data; the rule goes into its
`ModelState`, and notes to the run. stepping/model_steps.py calls `check_step`, which looks at the step, and
then `decide_training` or `decide_evaluation`, which are collectives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.checks import (
    dependence,
    findings,
    layer_notes,
    step_check,
    step_notes,
    step_rules,
)
from raydist.training.replicas import batch_slices, step_logs
from raydist.training.replicas.model_states import LossRule, state_of
from raydist.training.reporting import reporter
from raydist.training.user_code import captured_numbers, code_names
from raydist.training.user_code.code_names import is_keras

logger = logging.getLogger(__name__)


class _CheckSettings:
    checks = True


def enable_check(is_enabled: bool) -> None:
    """Whether models are checked. Otherwise all train by `LossRule.SCALED`, as in TensorFlow."""
    _CheckSettings.checks = is_enabled


def rule_of(model: Any) -> LossRule:
    return state_of(model).rule or _rule_without_check(model)


def _rule_without_check(model: Any) -> LossRule:
    """Returns the rule of a model whose losses are Keras's own, or are not checked.

    Keras scales them for several replicas, but for a loss that is a single number, such as that of Dice. It
    is a mean like all others.
    """
    return LossRule.LOCAL_MEAN if code_names.losses_of_whole_batch(model) else LossRule.SCALED


def evaluation_rule_of(model: Any) -> LossRule:
    """Returns the rule by which a test step's losses are shown."""
    is_own, state = not is_keras(type(model).test_step), state_of(model)
    found = state.evaluation_rule if is_own or state.rule is None else None
    return rule_of(model) if found is None else found


def forget(model: Any, *, is_training: bool) -> None:
    """Forgets what is known of a step that gets a new function, and of the other one if that has none.

    Both Kerases drop the functions of both steps when a model is compiled, maybe with other losses.
    """
    if is_training or model.train_function is None:
        state_of(model).rule = None
    if not is_training or model.test_function is None:
        state_of(model).evaluation_rule = None


def is_enabled() -> bool:
    """Whether models are checked, so that `decide_training` says which layers change a state of their own."""
    return _CheckSettings.checks


def is_decided(model: Any) -> bool:
    """Whether `decide_training` has looked at a step of the model."""
    return state_of(model).rule is not None


def is_undecided(model: Any, strategy: tf.distribute.Strategy, *, is_group: bool = False) -> bool:
    """Whether the model brings losses, or layers, of its own that were not looked at yet.

    Layers count that have a state, or that may compare examples.
    """
    if not _CheckSettings.checks or is_decided(model):
        return False
    has_replicas = strategy.num_replicas_in_sync > 1
    has_losses = (is_group or has_replicas) and code_names.has_own_losses(model)
    may_differ = has_replicas and (layer_notes.with_own_state(model) or layer_notes.may_compare(model))
    return has_losses or bool(may_differ)


def is_evaluation_undecided(model: Any, strategy: tf.distribute.Strategy) -> bool:
    """Whether it is not known yet by which rule a model's test step shows losses of the user's own."""
    if (
        not _CheckSettings.checks
        or strategy.num_replicas_in_sync == 1
        or state_of(model).evaluation_rule is not None
    ):
        return False
    is_own = not is_keras(type(model).test_step)
    return is_own or (not is_decided(model) and code_names.has_own_losses(model))


def check_rule(model: Any) -> None:
    """Raises UnsupportedError for losses of a model's own that no batch's share can weight."""
    if rule_of(model) is not LossRule.SCALED or not code_names.has_own_losses(model):
        return
    source = code_names.described(next(code_names.own_sources(model)))
    raise UnsupportedError(
        f"ctx.fit got accumulate, and the losses in {source} are "
        "scaled for several replicas, or could not be checked, so raydist cannot weight each batch by its "
        "examples; let them be means over the batch, and leave --no-check-equality out"
    )


def check_step(
    model: Any,
    step: Callable[[Any], Any],
    element: Any,
    *,
    shown: step_logs.Results | None,
    is_training: bool,
    is_decided: bool,
    metrics: Sequence[Any],
) -> step_check.StepCheck | None:
    """Returns what a check of a model's step finds of its first batch; None if it could not be traced.

    Before the step is traced.

    Args:
      step: The model's `train_step` or `test_step` as its Keras traces it, for one replica's batch.
      shown: What of metrics the step shows in its logs; None for Keras's own.
      is_decided: Whether only the metrics are still to be looked at.
    """
    strategy = model.distribute_strategy
    step, batch = batch_slices.on_own_rows(strategy, step, element)
    layers = _may_mix(model) if is_training and not is_decided else []
    return step_rules.checked(
        step,
        batch,
        name=model.name if is_training else f"the test step of {model.name}",
        strategy=strategy,
        model=model,
        **({} if shown is None else {"numbers_in": shown.own_scalars}),
        compares=not is_decided and (not is_training or code_names.has_own_losses(model)),
        layers=[model, *layers] if layers else [],
        metrics=metrics,
    )


def decide_training(
    model: Any, check: step_check.StepCheck | None, element: Any, *, num_batches: int = 1
) -> None:
    """Finds the model's rule, and reports that and what else its step does. A collective."""
    strategy, source = model.distribute_strategy, next(code_names.own_sources(model), None)
    if check is not None or source is not None:  # otherwise it stays undecided
        state_of(model).rule = _rule_without_check(model)
    if source is not None:
        numbers = captured_numbers.found_in(model.train_step, step_rules.replica_counts(strategy))
        number, division = step_rules.divider(check, numbers, strategy=strategy, element=element)
        state_of(model).rule, _ = step_rules.find_rule(
            source,
            check,
            strategy=strategy,
            num_batches=num_batches,
            number=number,
            division=division,
            has_own_losses=code_names.are_losses_own(model),
            sums_itself=code_names.sums_by_itself(model.optimizer),
        )
    step_rules.refuse_drifting(_assigner(model), [] if check is None else _drifting(model, check), strategy)
    for sentence in _notes_on_step(model, check):
        reporter.note(sentence)
    if layers := _comparing_layers(model, check):
        reporter.note(layer_notes.describe_comparing(layers))


def decide_evaluation(model: Any, check: step_check.StepCheck | None) -> None:
    """Finds the rule by which a model's `test_step` shows its losses. A collective.

    It compares what the step gives to `Mean` metrics for a batch and for the two halves of it.
    """
    strategy = model.distribute_strategy
    found = step_rules.of_workers(strategy, check)
    rule = findings.rule_of_evaluation(found)
    source = type(model).test_step
    source = _assigner(model) if is_keras(source) else source
    step_rules.refuse_equal_parts(source, found, strategy)
    if check is not None and (drifting := _drifting(model, check)):
        reporter.note(step_notes.describe_assignments(source, drifting, is_note=True))
    if rule is None or check is None:
        # Most likely that of training, so that evaluations before and after a fit agree.
        is_scaled = found.asks_for_replicas > 0
        state_of(model).evaluation_rule = LossRule.SCALED if is_scaled else LossRule.LOCAL_MEAN
        is_known, num_replicas = found.has_compared == 1, strategy.num_replicas_in_sync
        reporter.note(step_notes.describe_evaluation(source, num_replicas=num_replicas, is_known=is_known))
        return
    state_of(model).evaluation_rule = rule
    step_rules.set_takers_of_sums(check.rehearsal.means, found, rule, is_evaluation=True)


def _may_mix(model: Any) -> list[Any]:
    """Returns the layers whose results for an example may depend on others, and that have no other note."""
    if model.distribute_strategy.num_replicas_in_sync == 1 or not is_keras(type(model).train_step):
        return []
    noted = [id(one) for one in layer_notes.with_own_state(model)]
    return [one for one in layer_notes.may_compare(model) if id(one) not in noted]


def _comparing_layers(model: Any, check: step_check.StepCheck | None) -> list[Any]:
    """Returns the layers by which the gradients of an example depend on the others of its batch."""
    if check is None or not check.rehearsal.layer_calls:
        return []
    try:
        found, is_sure = dependence.mixing_layers(check.of_whole, check.batch, model=model)
    except Exception as error:  # the user's code, on a part of a batch
        logger.info("the layers of %s could not be checked: %s", model.name, error, exc_info=True)
        return []
    return found if is_sure or step_rules.compares_examples(check) else []


def _notes_on_step(model: Any, check: step_check.StepCheck | None) -> Iterator[str]:
    """Yields a sentence for each thing in a step that keeps raydist's first promise from holding."""
    has_replicas = model.distribute_strategy.num_replicas_in_sync > 1
    stateful = layer_notes.with_own_state(model) if has_replicas else []
    if check is None:
        if stateful:
            yield layer_notes.describe_state(stateful, is_sure=False)
        return
    fed = check.rehearsal.fed
    stateful = [
        one for one in stateful if tf_private.ids_of(layer_notes.own_state(one)) & {id(each) for each in fed}
    ]
    if stateful:
        yield layer_notes.describe_state(stateful, is_sure=True)
    if has_replicas:
        yield from _notes_on_draws(model, check)
    if drifting := _drifting(model, check):
        yield step_notes.describe_assignments(_assigner(model), drifting, is_note=True)


def _notes_on_draws(model: Any, check: step_check.StepCheck) -> Iterator[str]:
    metrics = {id(one) for one in model.metrics}
    drawing = [
        one for one in check.rehearsal.drawing if id(one) not in metrics and not _is_noted_to_draw(one)
    ]
    if drawing:
        yield layer_notes.describe_draws(drawing)
    functions = [check.rehearsal.drawing_function]
    if check.rehearsal.draws_elsewhere:
        functions.append(next(code_names.own_sources(model), None))
    yield from (step_notes.describe_draws(one) for one in functions if one is not None)


def _is_noted_to_draw(operation: Any) -> bool:
    return hasattr(operation, "trainable") and layer_notes.is_known_to_draw(operation)


def _assigner(model: Any) -> Any:
    """Returns the user's function or class that most likely assigns what a step does."""
    sources = (*code_names.own_sources(model), *layer_notes.may_compare(model))
    return next(iter(sources), model)


def _drifting(model: Any, check: step_check.StepCheck) -> list[Any]:
    """Returns those of the variables that may differ between replicas, without any other note on them."""
    owners = (*model._flatten_layers(include_self=False), *model.metrics)
    # The notes on layers name these. Weights that a step assigns by itself have no other note.
    # tf_keras's lookups list their vocabulary too, which is no variable.
    listed = (one for owner in owners for one in owner.variables)
    known = tf_private.ids_of([one for one in listed if not getattr(one, "trainable", False)])
    fed = check.rehearsal.fed
    return [one for one in fed if id(one) not in known and step_rules.differs(one, check)]
