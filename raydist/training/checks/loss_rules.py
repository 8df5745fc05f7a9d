"""Which LossRule each model trains by; found out before its first step on several replicas.

In come a model, its step as its Keras traces it, and the first element of its data; the rule goes into its
`ModelState`, and notes to the run. stepping/model_steps.py makes a `FirstLook` for each function of steps.
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
    metric_check,
    rehearsal,
    step_notes,
    step_rules,
    update_check,
)
from raydist.training.checks.known_steps import Known
from raydist.training.checks.step_check import StepCheck
from raydist.training.replicas import batch_slices, replica_share, step_logs, step_trace
from raydist.training.replicas.accumulation import Group
from raydist.training.replicas.model_states import LossRule, state_of
from raydist.training.reporting import reporter
from raydist.training.user_code import captured_numbers, code_names, side_effects
from raydist.training.user_code.code_names import is_keras

logger = logging.getLogger(__name__)


def rule_of(model: Any) -> LossRule:
    """Returns the rule by which a model trains."""
    return state_of(model).rule or _rule_without_check(model)


def _rule_without_check(model: Any) -> LossRule:
    """Returns the rule of a model whose losses are Keras's own, or are not checked.

    Keras scales them for several replicas, but for a loss that is a single number, such as that of Dice. It
    is a mean like all others.
    """
    return LossRule.LOCAL_MEAN if code_names.losses_of_whole_batch(model) else LossRule.SCALED


def is_decided(model: Any) -> bool:
    """Whether a training step of the model was looked at."""
    return state_of(model).rule is not None


class FirstLook:
    """What is found out about a model's step before it runs first on several replicas, and by its graph.

    Attributes:
      update: What is known of a training step of which several batches make an update; None before
        `at_groups`.
    """

    def __init__(
        self,
        model: Any,
        step: Callable[[Any], Any],
        *,
        is_training: bool,
        shown: step_logs.Results | None,
        build: Callable[[], object],
        known: Callable[[], Known | None],
    ) -> None:
        """Takes a step that gets a new function, and forgets what was known of it.

        Args:
          step: The model's `train_step` or `test_step` as its Keras traces it, for one replica's batch.
          shown: What of metrics the step shows in its logs; None for Keras's own.
          build: Called before the step is looked at, which needs the model's weights.
          known: Returns what is known of a training step, where another process may take the training up.
        """
        self.update: rehearsal.Rehearsal | None = None
        self._model, self._step, self._strategy = model, step, model.distribute_strategy
        self._is_training, self._shown, self._build, self._known = is_training, shown, build, known
        # Whether the look has found more than a graph and the rule show.
        self._has_more = self._knows_rows = False
        # Both Kerases drop the functions of both steps when a model is compiled, maybe with other losses.
        if is_training or model.train_function is None:
            state_of(model).rule = None
        if not is_training or model.test_function is None:
            state_of(model).evaluation_rule = None

    @property
    def rule(self) -> LossRule:
        """By which the step's losses are weighted; of a test step, by which they are shown."""
        is_own, state = not is_keras(type(self._model).test_step), state_of(self._model)
        if self._is_training or state.evaluation_rule is None or not (is_own or state.rule is None):
            return rule_of(self._model)
        return state.evaluation_rule

    def is_wanted(self, is_group: bool) -> bool:
        """Whether `at_element` has to see the first element, which is a `Group` or not."""
        return self._is_undecided(is_group) or metric_check.is_wanted(self._model)

    def _is_undecided(self, is_group: bool) -> bool:
        """Whether the model brings losses, or layers, of its own that were not looked at yet.

        Layers count that have a state, or that may compare examples. Of a test step, whether it is not known
        by which rule it shows losses of the user's own.
        """
        model, has_replicas = self._model, self._strategy.num_replicas_in_sync > 1
        if not rehearsal.is_enabled():
            return False
        if not self._is_training:
            is_open = has_replicas and state_of(model).evaluation_rule is None
            is_own = not is_keras(type(model).test_step)
            return is_open and (is_own or (not is_decided(model) and code_names.has_own_losses(model)))
        if is_decided(model):
            return False
        has_losses = (is_group or has_replicas) and code_names.has_own_losses(model)
        may_differ = has_replicas and (layer_notes.with_own_state(model) or layer_notes.may_compare(model))
        return has_losses or bool(may_differ)

    def at_element(self, element: Any, *, knows_rows: bool) -> None:
        """Looks at the first element, before the step is traced: a collective.

        Args:
          knows_rows: Whether the step can read from their shapes how many rows batches have.
        """
        self._build()
        self._knows_rows = knows_rows
        with side_effects.undone(self._model):
            self._rehearse(element)

    def take_over(self, trace: Callable[[], tf.Graph]) -> bool:
        """Takes what another process has found in place of a look at an element: a collective.

        Args:
          trace: Traces steps of a single batch, by the model's rule.

        Returns:
          Whether they can be run. Otherwise they have to be traced anew, after a look.
        """
        known = self._known() if self._is_training else None
        step = None if known is None else known.step(self._strategy)
        if known is None or step is None:
            return False
        self._build()
        state_of(self._model).rule = step.loss_rule
        if known.confirmed(self._strategy, trace) is None:
            state_of(self._model).rule = None
            return False
        metric_check.take_for_known(self._model)
        return True

    def hand_on(self, graph: Callable[[], tf.Graph]) -> None:
        """Has the next process know what was found, as far as the graph can show that it still holds.

        A collective, once such steps have run.
        """
        known, rule = self._known(), state_of(self._model).rule
        if not self._is_training or known is None or rule is None or self._has_more:
            return
        if known.step(self._strategy) is None:
            known.set(self._strategy, graph(), rule)

    def _rehearse(self, element: Any) -> None:
        model, is_group = self._model, isinstance(element, Group)
        first, num_batches = (element.batches[0], len(element.batches)) if is_group else (element, 1)
        undecided, is_wanted = self._is_undecided(is_group), metric_check.is_wanted(model)
        metrics = metric_check.unknown(model) if is_wanted else []
        check = self._checked(first, is_decided=not undecided, metrics=metrics)
        if check is not None:  # the step may run eagerly, without a graph
            reporter.note(layer_notes.note_on_turns(self._strategy, check.rehearsal.graph))
        if undecided and not self._is_training:
            self._decide_evaluation(check)
        elif undecided:
            self._decide_training(check, first, num_batches=num_batches)
            if is_group:
                self._check_rule()
        if is_wanted and len(made := metric_check.unknown(model)) > len(metrics):  # in that trace
            metrics, check = made, self._checked(first, is_decided=True, metrics=made)
        if metrics:
            metric_check.check(model, check)

    def at_groups(self, element_spec: Any) -> None:
        """Looks, before `at_element`, at the type of a batch, of which several make an update."""
        self.update = update_check.check_update(self._model, self._step, element_spec)
        if not self._is_undecided(is_group=True):
            self._check_rule()

    def at_graph(self, graph: tf.Graph) -> None:
        """Looks at the graph of the first steps that have run."""
        if not self._is_training:
            reporter.note(layer_notes.note_on_turns(self._strategy, graph))
            return
        step_trace.check_trains(self._model, graph)
        for sentence in layer_notes.notes_on_workers(self._strategy, graph):
            reporter.note(sentence)
        if not is_decided(self._model):  # which would have said so
            reporter.note(layer_notes.note_on_step(self._model, self._strategy, graph))

    def _check_rule(self) -> None:
        """Raises UnsupportedError for losses of a model's own that no batch's share can weight."""
        if rule_of(self._model) is not LossRule.SCALED or not code_names.has_own_losses(self._model):
            return
        source = code_names.described(next(code_names.own_sources(self._model)))
        raise UnsupportedError(
            f"ctx.fit got accumulate, and the losses in {source} are "
            "scaled for several replicas, or could not be checked, so raydist cannot weight each batch by "
            "its examples; let them be means over the batch, and leave --no-check-equality out"
        )

    def _checked(self, element: Any, *, is_decided: bool, metrics: Sequence[Any]) -> StepCheck | None:
        """Returns what a check of the step finds of its first batch; None if it could not be traced.

        Args:
          is_decided: Whether only the metrics are still to be looked at.
        """
        model, is_training, shown = self._model, self._is_training, self._shown
        step, batch = batch_slices.on_own_rows(self._strategy, self._step, element)
        layers = self._may_mix() if is_training and not is_decided else []
        return step_rules.checked(
            step,
            batch,
            name=model.name if is_training else f"the test step of {model.name}",
            knows_rows=self._knows_rows,
            strategy=self._strategy,
            model=model,
            **({} if shown is None else {"numbers_in": shown.own_scalars}),
            compares=not is_decided and (not is_training or code_names.has_own_losses(model)),
            layers=[model, *(one for one in layers if one is not model)] if layers else [],
            metrics=metrics,
        )

    def _decide_training(self, check: StepCheck | None, element: Any, *, num_batches: int) -> None:
        """Finds the model's rule, and reports that and what else its step does. A collective."""
        model, strategy = self._model, self._strategy
        source = next(code_names.own_sources(model), None)
        if check is not None or source is not None:  # otherwise it stays undecided
            state_of(model).rule = _rule_without_check(model)
        if source is not None:
            state_of(model).rule, _ = step_rules.find_rule(
                source,
                check,
                strategy=strategy,
                num_batches=num_batches,
                numbers=captured_numbers.found_in(model.train_step, step_rules.replica_counts(strategy)),
                element=element,
                has_own_losses=code_names.are_losses_own(model),
                sums_itself=code_names.sums_by_itself(model.optimizer),
            )
        means = [] if check is None else check.rehearsal.means
        self._has_more = any(map(replica_share.takes_sums, means))
        step_rules.refuse_drifting(self._assigner(), self._drifting(check), strategy)
        for sentence in self._notes_on_step(check):
            reporter.note(sentence)
        if layers := self._may_mix():
            reporter.note(self._note_on_comparing(check, layers))

    def _decide_evaluation(self, check: StepCheck | None) -> None:
        """Finds the rule by which a model's `test_step` shows its losses. A collective.

        It compares what the step gives to `Mean` metrics for a batch and for the two halves of it.
        """
        state, strategy = state_of(self._model), self._strategy
        found = step_rules.of_workers(strategy, check)
        state.evaluation_rule = findings.rule_of_evaluation(found)
        source = type(self._model).test_step
        source = self._assigner() if is_keras(source) else source
        step_rules.refuse_equal_parts(source, found, strategy)
        if drifting := self._drifting(check):
            reporter.note(step_notes.describe_assignments(source, drifting, is_note=True))
        if check is not None and check.needs_rows:
            reporter.note(step_notes.describe_rows(source))
        if state.evaluation_rule is not None and check is not None:
            step_rules.set_takers_of_sums(
                check.rehearsal.means, found, state.evaluation_rule, is_evaluation=True
            )
            return
        # Most likely that of training, so that evaluations before and after a fit agree.
        is_scaled = found.asks_for_replicas > 0
        state.evaluation_rule = LossRule.SCALED if is_scaled else LossRule.LOCAL_MEAN
        is_known, num_replicas = found.has_compared == 1, strategy.num_replicas_in_sync
        reporter.note(step_notes.describe_evaluation(source, num_replicas=num_replicas, is_known=is_known))

    def _may_mix(self) -> list[Any]:
        """Returns the layers whose results for an example may depend on others, without another note."""
        if self._strategy.num_replicas_in_sync == 1 or not is_keras(type(self._model).train_step):
            return []
        noted = [id(one) for one in layer_notes.with_own_state(self._model)]
        return [one for one in layer_notes.may_compare(self._model) if id(one) not in noted]

    def _note_on_comparing(self, check: StepCheck | None, layers: Sequence[Any]) -> str | None:
        """Returns a sentence for layers by which an example's gradients depend on the others of its batch.

        Args:
          layers: Those that may.
        """
        model = self._model
        if check is None or not check.rehearsal.layer_calls:
            return layer_notes.describe_not_compared(layers)
        try:
            found, is_sure = dependence.mixing_layers(check.of_whole, check.of_half, check.batch, model=model)
        except Exception as error:  # the user's code, on a part of a batch
            step_rules.report_failure(f"the layers of {model.name}", error)
            return layer_notes.describe_not_compared(layers)
        is_found = found and (is_sure or step_rules.compares_examples(check))
        return layer_notes.describe_comparing(found) if is_found else None

    def _notes_on_step(self, check: StepCheck | None) -> Iterator[str]:
        """Yields a sentence for each thing in a step that keeps raydist's first promise from holding."""
        has_replicas = self._strategy.num_replicas_in_sync > 1
        stateful = layer_notes.with_own_state(self._model) if has_replicas else []
        if check is not None:
            fed = {id(one) for one in check.rehearsal.fed}
            stateful = [one for one in stateful if tf_private.ids_of(layer_notes.own_state(one)) & fed]
        if stateful:
            yield layer_notes.describe_state(stateful, is_sure=check is not None)
        if check is not None and has_replicas:
            yield from self._notes_on_draws(check)
        if drifting := self._drifting(check):
            yield step_notes.describe_assignments(self._assigner(), drifting, is_note=True)

    def _notes_on_draws(self, check: StepCheck) -> Iterator[str]:
        metrics = {id(one) for one in self._model.metrics}
        drawing = [
            one for one in check.rehearsal.drawing if id(one) not in metrics and not _is_noted_to_draw(one)
        ]
        if drawing:
            yield layer_notes.describe_draws(drawing)
        functions = [check.rehearsal.drawing_function]
        if check.rehearsal.draws_elsewhere:
            functions.append(next(code_names.own_sources(self._model), None))
        yield from (step_notes.describe_draws(one) for one in functions if one is not None)

    def _assigner(self) -> Any:
        """Returns the user's function or class that most likely assigns what a step does."""
        sources = (*code_names.own_sources(self._model), *layer_notes.may_compare(self._model))
        return next(iter(sources), self._model)

    def _drifting(self, check: StepCheck | None) -> list[Any]:
        """Returns those of the variables that may differ between replicas, without any other note on them."""
        if check is None:
            return []
        owners = (*self._model._flatten_layers(include_self=False), *self._model.metrics)
        # The notes on layers name these. Weights that a step assigns by itself have no other note.
        # tf_keras's lookups list their vocabulary too, which is no variable.
        listed = (one for owner in owners for one in owner.variables)
        known = tf_private.ids_of([one for one in listed if not getattr(one, "trainable", False)])
        fed = check.rehearsal.fed
        return [one for one in fed if id(one) not in known and step_rules.differs(one, check)]


def _is_noted_to_draw(operation: Any) -> bool:
    return hasattr(operation, "trainable") and layer_notes.is_known_to_draw(operation)
