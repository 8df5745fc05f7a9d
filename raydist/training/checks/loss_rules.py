"""Which LossRule each model trains by; found out before its first step on several replicas."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training import tf_private
from raydist.training.checks import dependence, findings, layer_notes, loop_scalars, step_check, step_notes
from raydist.training.checks.findings import NOT_COMPUTED, Division, LossVerdict, StepFindings
from raydist.training.checks.rehearsal import Watched
from raydist.training.cluster.collectives import findings_of_workers, is_alone
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.replicas import batch_slices, replica_share, step_logs
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
    """Returns the rule that a model trains by."""
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

    Args:
      is_group: Whether several batches make an update.
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
      element: The first element of the distributed data.
      shown: What of metrics the step shows in its logs; None for Keras's own.
      is_decided: Whether only the metrics are still to be looked at.
      metrics: Whose updates are kept.
    """
    strategy = model.distribute_strategy
    step, batch = batch_slices.on_own_rows(strategy, step, element)
    layers = _may_mix(model) if is_training and not is_decided else []
    return _checked(
        step,
        batch,
        name=model.name if is_training else f"the test step of {model.name}",
        strategy=strategy,
        model=model,
        shown=shown,
        compares=not is_decided and (not is_training or code_names.has_own_losses(model)),
        watched=Watched(layers=[model, *layers] if layers else [], metrics=metrics),
    )


def decide_training(
    model: Any, check: step_check.StepCheck | None, element: Any, *, num_batches: int = 1
) -> None:
    """Finds the model's rule, and reports that and what else its step does. A collective.

    Args:
      check: Of its training step, by the first element.
      num_batches: Batches of an update.
    """
    strategy, source = model.distribute_strategy, next(code_names.own_sources(model), None)
    if check is not None or source is not None:  # otherwise it stays undecided
        state_of(model).rule = _rule_without_check(model)
    if source is not None:
        numbers = captured_numbers.found_in(model.train_step, _sizes(strategy))
        number, division = _divider(check, numbers, lambda one: _on_rows(one, strategy, element)[0])
        state_of(model).rule, _ = _find_rule(
            source,
            check,
            strategy=strategy,
            num_batches=num_batches,
            number=number,
            division=division,
            has_own_losses=code_names.are_losses_own(model),
            sums_itself=code_names.sums_by_itself(model.optimizer),
        )
    _refuse_drifting(_assigner(model), [] if check is None else _drifting(model, check), strategy)
    for sentence in _notes_on_step(model, check):
        reporter.note(sentence)
    if layers := _comparing_layers(model, check):
        reporter.note(layer_notes.describe_comparing(layers))


def decide_evaluation(model: Any, check: step_check.StepCheck | None) -> None:
    """Finds the rule by which a model's `test_step` shows its losses. A collective.

    It compares what the step gives to `Mean` metrics for a batch and for the two halves of it.
    """
    strategy = model.distribute_strategy
    found = _of_workers(strategy, check)
    rule = findings.rule_of_evaluation(found)
    source = type(model).test_step
    source = _assigner(model) if is_keras(source) else source
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
    _set_takers_of_sums(check.rehearsal.means, found, rule, is_evaluation=True)


def _checked(
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

    Args:
      name: Of the step, for the log.
      compares: Whether the gradients are wanted.
      options: Of `StepCheck`.
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
            check.errors = [NOT_COMPUTED] * len(LossRule)  # two examples alike hide a comparison
    except Exception as error:  # the user's code, on a part of a batch; the step itself shows what is wrong
        logger.info("%s could not be checked: %s", name, error, exc_info=True)
    return check


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
    return found if is_sure or _compares_examples(check) else []


@dataclass(frozen=True, kw_only=True)
class LoopRule:
    """How the step of a loop is run.

    Attributes:
      sums: The numbers that it returns which are sums over the examples of a batch; of others the mean over
        replicas is shown.
    """

    rule: LossRule = LossRule.SCALED
    sums: frozenset[str] = frozenset()


def rule_of_loop(
    step_fn: Callable[[Any], Any], element: Any, *, strategy: tf.distribute.Strategy, num_workers: int
) -> LoopRule:
    """Finds and reports the rule of a loop's step by its first batch. A collective, before it is traced."""
    num_replicas = strategy.num_replicas_in_sync
    if num_replicas == 1 or not _CheckSettings.checks:
        return LoopRule()

    step, batch = _on_rows(step_fn, strategy, element)
    returned = loop_scalars.StepScalars(step_fn)
    numbers = captured_numbers.found_in(step_fn, _sizes(strategy, num_workers))
    # Those that are known to be it are asked for, as that of the strategy is.
    asked = [one for one in numbers if one.is_of_context and one.value == num_replicas]
    numbers = [one for one in numbers if one not in asked]
    variants = {
        count: _on_rows(_with_replicas(step_fn, asked, count), strategy, element)[0]
        for count in (1, 2)
        if asked
    }
    check = _checked(step, batch, name=step_fn, strategy=strategy, shown=returned, variants=variants)
    number, division = _divider(check, numbers, lambda one: _on_rows(one, strategy, element)[0])
    rule, found = _find_rule(
        step_fn, check, strategy=strategy, is_loop=True, number=number, division=division
    )
    parts = _described_parts(num_replicas, 1)
    drifting = [] if check is None else _drifting_in_loop(check)
    # Of others there is a note: a loop may mean them to be a replica's own.
    _refuse_drifting(step_fn, [one for one in drifting if one.trainable], strategy)
    if check is not None:
        if check.rehearsal.draws_elsewhere:
            reporter.note(step_notes.describe_draws(step_fn))
        if layers := layer_notes.normed_by_replica(check.rehearsal.normalising, strategy):
            reporter.note(layer_notes.describe_norms(layers))
        if drifting:
            reporter.note(step_notes.describe_assignments(step_fn, drifting, is_note=True))
        if summed := _summed_in_loop(check):
            reporter.note(step_notes.describe_summed_assignments(step_fn, summed))
    sums = _sums_returned(step_fn, returned.names, found, rule, parts=parts)
    return LoopRule(rule=rule, sums=frozenset(sums))


def _on_rows(
    function: Callable[[Any], Any], strategy: tf.distribute.Strategy, element: Any
) -> tuple[Callable[[Any], Any], Any]:
    """Returns a step for one replica's batch, as AutoGraph converts it, and that batch."""
    status = tf.__internal__.autograph.control_status_ctx()
    return batch_slices.on_own_rows(strategy, tf.__internal__.autograph.tf_convert(function, status), element)


def _sizes(strategy: tf.distribute.Strategy, num_workers: int = 1) -> list[float]:
    """Returns the numbers of replicas and of workers, and what divides by them as a factor."""
    sizes = {float(one) for one in (strategy.num_replicas_in_sync, num_workers) if one > 1}
    return [*sizes, *(1 / one for one in sizes)]


def _with_replicas(
    step_fn: Any, asked: Sequence[captured_numbers.OutsideNumber], num_replicas: int
) -> Callable[[Any], Any]:
    """Returns a step that has another number of replicas from outside."""
    function = step_fn
    for number in asked:
        function = number.replaced(num_replicas / number.value, function=function)
    return function


def _divider(
    check: step_check.StepCheck | None,
    numbers: Sequence[captured_numbers.OutsideNumber],
    on_rows: Callable[[Callable[[Any], Any]], Callable[[Any], Any]],
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
            found = check.divides_by([on_rows(number.replaced(one)) for one in factors])
        except Exception as error:  # the user's code, with another number
            logger.info("%s cannot be another number: %s", number.name, error)
            continue
        if found is Division.WHOLE or (found is Division.PART and division is Division.NONE):
            name, division = number.name, found
    return name, division


def _sums_returned(
    step_fn: Any, names: Sequence[str], found: StepFindings, rule: LossRule, *, parts: str
) -> list[str]:
    """Returns which of the numbers that a loop's step returns are sums; notes those that are shown wrong."""
    if found.has_compared == 0:
        reporter.note(step_notes.describe_returned_unknown(step_fn, parts=parts))
        return []
    kinds = findings.kinds_of_returned(found, names, rule)
    if kinds.unlike and not found.is_random:
        reporter.note(step_notes.describe_returned(step_fn, kinds.unlike, parts=parts))
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
            else _differs(one, check)
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


def _of_workers(
    strategy: tf.distribute.Strategy, check: step_check.StepCheck | None, division: Division = Division.NONE
) -> StepFindings:
    """Returns the mean of what all workers have found. A collective."""
    own = StepFindings() if check is None else check.findings(division)
    return own.joined(lambda numbers: findings_of_workers(strategy, numbers))


def _find_rule(
    source: Any,
    check: step_check.StepCheck | None,
    *,
    strategy: tf.distribute.Strategy,
    num_batches: int = 1,
    is_loop: bool = False,
    number: str = "",
    division: Division = Division.NONE,
    has_own_losses: bool = True,
    sums_itself: bool = False,
) -> tuple[LossRule, StepFindings]:
    """Decides by what all workers have found, and reports the rule. A collective.

    Args:
      number, division: What the gradients are divided by, as far as this worker has found.
      has_own_losses: Whether losses are the user's. Keras's are scaled, and only metrics are looked at.
      sums_itself: Whether the user's optimizer adds up gradients over replicas, which the check may not see.
    """
    # One decision for all: each worker has looked at other examples, or had too few.
    found = _of_workers(strategy, check, division)

    def set_takers_of_sums(rule: LossRule) -> None:
        # A worker that could not look does not know the metrics, and all have to treat them alike.
        if check is not None and found.has_compared == 1:
            _set_takers_of_sums(check.rehearsal.means, found, rule)
            # Keras's own test step computes the losses by the same code.
            _set_takers_of_sums(check.rehearsal.means, found, rule, is_evaluation=True)

    def is_shown(rule: LossRule) -> bool:
        return found.has_compared == 0 or found.shows(rule)

    if is_loop and found.is_without_updates:  # it evaluates, or changes its variables by itself
        set_takers_of_sums(LossRule.SCALED)
        if found.trains_by_hand:
            reporter.note(step_notes.describe_training_by_hand(source))
        return LossRule.SCALED, found
    parts = _described_parts(strategy.num_replicas_in_sync, num_batches)
    if not has_own_losses:
        set_takers_of_sums(LossRule.SCALED)
        if not is_shown(LossRule.SCALED) and not found.is_random:
            reporter.note(step_notes.describe_shown(source, parts=parts))
        return LossRule.SCALED, found

    def are_examples_compared() -> bool:
        return findings_of_workers(strategy, [float(_compares_examples(check))])[0] > 0

    finding = findings.of_gradients(
        found, number=number, sums_itself=sums_itself, are_examples_compared=are_examples_compared
    )
    logger.info("%s: %s, errors %s", source, finding, found.errors)
    set_takers_of_sums(finding.rule)
    reporter.note(step_notes.describe(finding, function=source, parts=parts))
    is_noted = finding.verdict in (LossVerdict.UNEQUAL, LossVerdict.UNKNOWN)
    if not is_shown(finding.rule) and not is_noted and not finding.is_random:
        reporter.note(step_notes.describe_shown(source, parts=parts))
    return finding.rule, found


def _set_takers_of_sums(
    metrics: Sequence[Any], found: StepFindings, rule: LossRule, *, is_evaluation: bool = False
) -> None:
    """Takes a metric for one of sums if each of its scalars is one, for some of the workers.

    For the others it may have been zero, which shows nothing.
    """
    takes_sums = found.takes_sums[list(LossRule).index(rule)]
    others = {id(one) for one, is_sum in zip(metrics, takes_sums, strict=False) if not is_sum}
    takers = [one for one in metrics if id(one) not in others]
    replica_share.set_takers_of_sums(takers, rule, among=metrics, is_evaluation=is_evaluation)


def _compares_examples(check: step_check.StepCheck | None) -> bool:
    try:
        return check is not None and check.compares_examples()
    except Exception as error:  # the user's code, on a part of a batch
        logger.info("it could not be looked at whether losses compare examples: %s", error)
        return False


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


def _described_parts(num_replicas: int, num_batches: int) -> str:
    batches = f"the {num_batches} batches of an update"
    if num_batches == 1:
        return f"the {num_replicas} replicas"
    return batches if num_replicas == 1 else f"the {num_replicas} replicas and {batches}"


def _refuse_drifting(source: Any, drifting: Sequence[Any], strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError if a step gives each worker other values of its variables: a collective.

    The checkpoint of such a run would not be that of any worker but the chief.
    """
    if is_alone(strategy) or is_virtual(strategy):
        return
    [share] = findings_of_workers(strategy, [float(bool(drifting))])
    if share > 0:
        raise UnsupportedError(step_notes.describe_assignments(source, drifting, is_note=False))


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
    return [one for one in check.rehearsal.fed if id(one) not in known and _differs(one, check)]


def _differs(variable: Any, check: step_check.StepCheck) -> bool:
    """Whether a variable holds what one replica, or one worker, assigns from its part of the batch.

    What was made outside of the scope has no aggregation, whatever it was given. Replicas of one worker add
    to it one after another, which is a sum.
    """
    if tf_private.is_of_strategy(variable):
        of_one = (tf.VariableAggregation.NONE, tf.VariableAggregation.ONLY_FIRST_REPLICA)
        return any(variable.aggregation == one for one in of_one)  # TensorFlow has two enums of them
    is_sum = variable.aggregation == tf.VariableAggregation.SUM and is_alone(check.strategy)
    return not (is_sum and dependence.builds_on_itself(variable, check.rehearsal.graph))
