"""Which LossRule each model trains by; found out before its first step on several replicas."""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training import tf_private
from raydist.training.cluster.collectives import means_over_workers
from raydist.training.replicas import gradient_probe, loss_check, slices
from raydist.training.replicas.replica_share import LossRule
from raydist.training.reporting import reporter

logger = logging.getLogger(__name__)


class _Settings:
    checks = True


_rules: weakref.WeakKeyDictionary[Any, LossRule] = weakref.WeakKeyDictionary()


def enable_check(is_enabled: bool) -> None:
    """Whether models are checked. Otherwise all train by `LossRule.SCALED`, as in TensorFlow."""
    _Settings.checks = is_enabled


def rule_of(model: Any) -> LossRule:
    """Returns the rule that a model trains by."""
    return _rules.get(model, LossRule.SCALED)


def evaluation_rule_of(model: Any) -> LossRule:
    """Returns the rule by which a test step's losses are shown; it has no gradients to compare."""
    is_own = not is_keras(type(model).test_step)
    return LossRule.LOCAL_MEAN if is_own and _Settings.checks else rule_of(model)


def forget(model: Any) -> None:
    """Lets the rule be found anew: the model was compiled again, or for the first time."""
    _rules.pop(model, None)


def is_undecided(model: Any, strategy: tf.distribute.Strategy) -> bool:
    """Whether the model brings losses of its own, and nobody has looked yet how they are written."""
    return (
        _Settings.checks
        and model not in _rules
        and strategy.num_replicas_in_sync > 1
        and has_own_losses(model)
    )


def decide(model: Any, step: Callable[[Any], Any], element: Any) -> None:
    """Finds the model's rule by its first batch, and tells it. A collective, before the first step is traced.

    Args:
      step: The model's `train_step` as its Keras traces it, for one replica's batch.
      element: The first element of the distributed data.
    """
    strategy = model.distribute_strategy
    step, batch = _without_none(step, _own_rows(strategy.experimental_local_results(element)[0]))
    check: loss_check.StepCheck | None = None
    errors = [loss_check.UNKNOWN] * 3
    try:
        spec = tf.nest.map_structure(_relaxed_spec, batch)
        if int(slices.num_rows(batch)) > 1:
            with gradient_probe.counters_kept(model):
                check = loss_check.StepCheck(step, strategy=strategy, spec=spec)
            errors = check.errors(batch)
    except Exception as error:  # the user's code, on a part of a batch; the step itself tells what is wrong
        logger.info("%s could not be checked: %s", model.name, error, exc_info=True)
    # One decision for all: each worker has looked at other examples, or had too few.
    is_known = [float(error < loss_check.UNKNOWN) for error in errors]
    own = [error if known else 0.0 for error, known in zip(errors, is_known, strict=True)]
    asks = float(check is not None and check.asks_for_replicas)
    draws = float(check is not None and check.is_random)
    reduces = float(check is not None and check.reduces_itself)
    again = float(check is not None and check.reduces_twice)
    *values, num_asking, num_drawing, num_reducing, num_again = means_over_workers(
        strategy, [*own, *is_known, asks, draws, reduces, again]
    )
    sums, knowing = values[: len(errors)], values[len(errors) :]
    means = [
        total / share if share else loss_check.UNKNOWN for total, share in zip(sums, knowing, strict=True)
    ]
    finding = loss_check.decide(
        means,
        is_random=num_drawing > 0,
        asks_for_replicas=num_asking > 0,
        reduces_itself=num_reducing > 0,
        reduces_twice=num_again > 0,
    )
    _rules[model] = finding.rule
    logger.info("%s: %s, errors %s", model.name, finding, means)
    source = next(_own_sources(model))
    sentence = loss_check.describe(finding, function=source, num_replicas=strategy.num_replicas_in_sync)
    if sentence is not None:
        reporter.note(sentence)
    if check is not None and check.processes_gradients:
        reporter.note(loss_check.describe_processing(source))
    if check is not None and (drifting := _drifting(model, check.assigned)):
        reporter.note(loss_check.describe_assignments(source, drifting))


def _drifting(model: Any, assigned: Sequence[Any]) -> list[Any]:
    """Returns those of the variables that nobody makes equal on all replicas, and nobody else tells of."""
    layers = model._flatten_layers(include_self=False)  # of which the notes on layers tell
    owners = (*layers, *model.metrics)
    listed = [*model.trainable_variables, *(variable for one in owners for variable in one.variables)]
    # A variable of Keras 3 wraps a tf.Variable.
    plain = (one if isinstance(one, tf.Variable) else one.value for one in listed)
    known = {id(tf_private.distributed(one)) for one in plain if isinstance(one, tf.Variable)}
    none = tf.VariableAggregation.NONE
    return [one for one in assigned if id(one) not in known and one.aggregation is none]


def has_own_losses(model: Any) -> bool:
    """Whether some of the arithmetic of a model's loss is the user's and not Keras's."""
    return next(_own_sources(model), None) is not None


def _own_sources(model: Any) -> Iterator[Any]:
    """Yields the functions and classes of the user's that a model's loss comes from."""
    own = type(model).train_step, type(model).compute_loss
    yield from (function for function in own if not is_keras(function))
    yield from (loss for loss in _compiled_losses(model) if not is_keras(loss))
    yield from (type(layer) for layer in model._flatten_layers() if _adds_losses(type(layer)))


def _compiled_losses(model: Any) -> Iterator[Any]:
    for loss in tf.nest.flatten(model.loss if not inspect.ismethod(model.loss) else None):
        if loss is None or isinstance(loss, str):
            continue
        yield loss if inspect.isroutine(loss) else type(loss)


def _adds_losses(cls: type) -> bool:
    """Whether a layer's class that is not Keras's calls `add_loss`."""
    return any(
        "add_loss" in code.co_names
        for base in cls.__mro__
        if not is_keras(base)
        for member in vars(base).values()
        if (code := getattr(member, "__code__", None)) is not None
    )


def is_keras(thing: Any) -> bool:
    """Whether a function or class is Keras's own, of either Keras."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in ("keras", "tf_keras")


def _own_rows(element: Any) -> Any:
    """Returns a replica's batch. A padding example has something to compute on, too."""
    return element.batch if isinstance(element, slices.Slice) else element


def _without_none(step: Callable[[Any], Any], batch: Any) -> tuple[Callable[[Any], Any], Any]:
    """Returns a step on the components that are there, and these; `train_on_batch` has None for weights."""
    components = tf.nest.flatten(batch)
    given = [tf.convert_to_tensor(one) if isinstance(one, np.ndarray) else one for one in components]

    def on_given(present: Any) -> Any:
        left = iter(present)
        return step(
            tf.nest.pack_sequence_as(batch, [None if one is None else next(left) for one in components])
        )

    return on_given, [one for one in given if one is not None]


def _relaxed_spec(component: Any) -> Any:
    """Returns the type of a component with any number of rows."""
    spec = tf.type_spec_from_value(component)
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec
