"""The function that runs a Keras model's steps, for either Keras: on replicas, several steps in a call.

In come a model and its `train_step`, `test_step` or `predict_step`. Out goes what Keras keeps as
`train_function` and so on; before the first step runs, checks/ looks at it. The models of keras_patches/ call
`make_step_function` and `make_predict_function`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.checks import layer_notes, prediction_check
from raydist.training.checks.loss_rules import FirstLook
from raydist.training.checks.rehearsal import Rehearsal
from raydist.training.cluster import gathered_rows, kept_totals
from raydist.training.cluster.strategy import is_central
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.replicas import accumulation, batch_slices, compilation, step_logs
from raydist.training.replicas.accumulation import Group
from raydist.training.replicas.model_states import LossRule
from raydist.training.replicas.replica_share import in_turn, num_replicas, use_share
from raydist.training.stepping import fit_session, step_calls
from raydist.training.user_code import code_names


def refuse_own_functions(model: Any) -> None:
    """Raises UnsupportedError for a model that makes the functions of its steps without Keras's."""
    if (function := code_names.own_step_function(model)) is not None:
        steps = function.__name__.removeprefix("make_").replace("function", "step")
        raise UnsupportedError(
            f"{function.__qualname__} in {code_names.location_of(function)} "
            "does not call Keras's, which raydist replaces: it would get the parts of several replicas in "
            f"place of batches. Override {steps}, or call super().{function.__name__}"
        )


def run(
    step: Callable[[Any], Any],
    elements: Sequence[Any],
    *,
    rule: LossRule,
    check: Rehearsal,
    shown: step_logs.Results | None,
    metric_variables: Sequence[tf.Variable],
) -> Any:
    """Runs `step` on each of a replica's batches, and updates the weights once, by all of them.

    The step is traced once for each batch, and the batches are computed one after the other.

    Args:
      check: What is known of the step.
      shown: What of metrics a step of the user's shows; None for one of Keras's, which shows nothing else.
      metric_variables: Variables that a padding example must not change.

    Returns:
      The outputs of the last batch; of a step of the user's, the means of what are not metrics.
    """
    shares = accumulation.shares_of(elements)
    totals = _totals(elements, shares, check)
    accumulated, outputs = accumulation.Accumulated(), []

    def run_batch(element: Any, share: tf.Tensor) -> Any:
        total_of = in_turn(totals)
        with use_share(share, rule, is_model_step=True, total_of=total_of, accumulated=accumulated):
            return step(batch_slices.own_rows_of(element))

    for given, share in zip(elements, shares, strict=True):
        element = accumulated.after(given)
        outputs.append(
            batch_slices.keep_on_padding(metric_variables, element, lambda: run_batch(element, share))  # noqa: B023
        )
    accumulated.apply()
    if shown is None:
        return outputs[-1]
    return step_logs.of_update(outputs, shares, shown)


def _totals(elements: Sequence[Any], shares: Sequence[tf.Tensor], check: Rehearsal) -> list[tf.Tensor]:
    """Returns what all batches of the update, on all replicas, have of each amount: a collective if any."""
    if check.num_amounts == 0:
        return []
    own = []
    for element, share in zip(elements, shares, strict=True):
        amounts = tf.stack(check.amounts(batch_slices.own_rows_of(element)))
        own.append(tf.where(share > 0, amounts, tf.zeros_like(amounts)))
    total = tf.add_n(own)
    context = tf.distribute.get_replica_context()
    if num_replicas() > 1 and context is not None:
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, total)
    return list(tf.unstack(total, num=check.num_amounts))


def make_predict_function(
    model: Any, step: Callable[[Any], Any], *, of_shards: Callable[..., Any]
) -> Callable[[Sequence[Any]], Any]:
    """Returns a function of some batches that returns the outputs for all of their rows, in their order.

    Batches are parts of distributed data, or whole ones as `predict_on_batch` gives, which it cuts.

    Args:
      step: The model's `predict_step` as its Keras traces it, on one replica's batch.
      of_shards: Keras's function that joins what replicas return for data that TensorFlow distributes.
    """
    strategy, unseen = model.distribute_strategy, [step]
    if compilation.is_compiled(model, strategy) and not model.run_eagerly:
        step = tf.function(step, reduce_retracing=True, jit_compile=True)

    def replica_step(element: Any) -> Any:
        return batch_slices.drop_padding(batch_slices.run_slice(step, element), element)

    def of_all(element: Any) -> Any:
        outputs = strategy.run(replica_step, args=(element,))
        if isinstance(element, batch_slices.Shard) and not is_virtual(strategy):
            return of_shards(outputs, strategy, reduction="concat")
        return gathered_rows.of_all_replicas(outputs, strategy)

    @tf.autograph.experimental.do_not_convert
    def predict(elements: Sequence[Any]) -> Any:
        return tf.nest.map_structure(lambda *parts: gathered_rows.joined(parts), *map(of_all, elements))

    traced = predict if model.run_eagerly else tf.function(predict, reduce_retracing=True)

    def call(elements: Sequence[Any]) -> Any:
        elements = [batch_slices.for_replicas(element, strategy) for element in elements]
        with layer_notes.refusing_constant_rows(model, strategy):
            outputs = traced(elements)
        if unseen:  # when it has built the model
            prediction_check.note_mixed_rows(model, unseen.pop(), elements[0])
        return outputs

    return call


def make_step_function(
    model: Any,
    step: Callable[[Any], Any],
    *,
    convert: Callable[[Callable[[Any], Any]], Callable[[Any], Any]],
    is_training: bool,
    finish: Callable[[Any], Any],
    build: Callable[[], object] = lambda: None,
    after_step: Callable[[], object] = lambda: None,
) -> Callable[[Any], Any]:
    """Returns a function of a `step_calls.StepCall` that returns the logs of its last step.

    Args:
      step: The model's `train_step` or `test_step`, on one replica's batch.
      convert: Makes of it what its Keras traces.
      finish: Takes the logs of this task's replicas, and returns those of all: a collective.
      build: See `FirstLook`.
      after_step: Called on each replica when the step has run.
    """
    strategy, converted = model.distribute_strategy, convert(step)
    # What the logs of a step of the user's show, found when it is traced.
    shown = None if code_names.is_keras(step) else step_logs.Results(model)
    noted = converted if shown is None else lambda batch: shown.noted(converted(batch))
    first_look = FirstLook(
        model,
        noted,
        is_training=is_training,
        shown=shown,
        build=build,
        known=lambda: None if (session := fit_session.current()) is None else session.known,
    )

    def metric_variables() -> Sequence[tf.Variable]:
        """Returns the variables that a padding example must not change."""
        # With central storage the replicas share them; a padding example counts, as one example more.
        return [] if is_central(strategy) else step_logs.variables_of_metrics(model)

    def replica_step(element: Any) -> Any:
        rule, kept = first_look.rule, metric_variables()
        if isinstance(element, Group):
            assert first_look.update is not None  # `at_groups` comes first
            outputs = run(
                noted,
                element.batches,
                rule=rule,
                check=first_look.update,
                shown=shown,
                metric_variables=kept,
            )
        else:
            outputs = batch_slices.run_slice(
                noted,
                element,
                kept=kept,
                rule=rule,
                is_model_step=True,
                is_evaluation=not is_training,
            )
            # Keras 3 shows the variable itself for a metric whose `result` returns it.
            outputs = step_logs.as_tensors(outputs) if shown is None else shown.weighted(outputs, element)
        after_step()
        return outputs

    @tf.autograph.experimental.do_not_convert
    def one_step(element: Any) -> Any:
        outputs = strategy.run(replica_step, args=(element,))
        # The logs of a batch are those of the local replicas: reducing them would cost an all-reduce
        # per step, and halve the step rate. Where a callback reads them, `call` does so. The logs of an epoch
        # are read from the metrics, whose variables are summed over all replicas.
        return step_logs.of_replicas(strategy, outputs)

    function = step_calls.call_of_steps(
        one_step,
        run_eagerly=model.run_eagerly,
        jit_compile=compilation.is_compiled(model, strategy),
        as_element=functools.partial(batch_slices.for_replicas, strategy=strategy),
        first_look=first_look,
    )

    unnoted = [] if shown is None or strategy.num_replicas_in_sync == 1 else [shown]

    def call(elements: Any) -> Any:
        step_logs.set_shown(model, shown)
        with kept_totals.changing(), layer_notes.refusing_constant_rows(model, strategy):
            outputs = function(elements)
        outputs = step_logs.of_task(model, outputs, is_training=is_training)
        while unnoted:
            own_step = type(model).train_step if is_training else type(model).test_step
            unnoted.pop().note_derived(own_step)
        session = fit_session.current() if is_training else None
        # The logs of a batch that was passed by hand go back to the user at once.
        is_read = not isinstance(elements, step_calls.StepCall) or (session and session.reads_batch_logs)
        return finish(outputs) if is_read and strategy.num_replicas_in_sync > 1 else outputs

    return call
