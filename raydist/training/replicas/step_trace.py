"""What a model's training step uses, found by a trace that runs nothing. A restore needs it beforehand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster import collective_clock
from raydist.training.replicas.gradient_probe import Probe, Update
from raydist.training.replicas.model_states import state_of
from raydist.training.user_code import side_effects
from raydist.training.user_code.code_names import described

logger = logging.getLogger(__name__)


@dataclass
class Traced:
    """What a trace of the training step has used.

    Attributes:
      optimizers: Those that were given gradients, in order.
      updated: The variables that those were for.
      variables: Those that were read, in order.
    """

    optimizers: list[Any] = field(default_factory=list)
    updated: list[Any] = field(default_factory=list)
    variables: list[Any] = field(default_factory=list)


def trace_step(
    model: Any,
    step: Callable[[Any], Any],
    element_spec: Any,
    *,
    build: Callable[[Any, Sequence[Any]], None],
) -> None:
    """Traces a model's training step without running it, for what it uses, and builds its optimizers.

    A restore needs both. What the step raises is left to the first step, which shows it where it runs.

    Args:
      element_spec: The structure of one replica's batch: types, or values.
      build: Builds an optimizer for the variables that it will update.
    """
    probe = Probe(model.distribute_strategy)
    updates: list[Update] = []

    @tf.autograph.experimental.do_not_convert
    def run(batch: Any) -> None:
        # Inside: layers that it builds are made outside of the graph, in the scope that holds there.
        with tf_private.as_one_of(1):
            updates[:] = probe.collect(lambda: step(batch))

    specs = tf.nest.map_structure(_spec_of, element_spec)
    try:
        with side_effects.undone(model):
            graph = tf.function(run, autograph=False).get_concrete_function(specs).graph
    except Exception as error:
        logger.info("train_step of %s could not be traced: %s", model.name, error, exc_info=True)
        state_of(model).traced = None  # of an earlier compile
        return
    with model.distribute_strategy.scope():
        for update in updates:
            build(update.optimizer, update.variables)
    optimizers = list({id(update.optimizer): update.optimizer for update in updates}.values())
    updated = [
        variable
        for update in updates
        for gradient, variable in zip(update.gradients, update.variables, strict=False)
        if gradient is not None
    ]
    state_of(model).traced = Traced(optimizers=optimizers, updated=updated, variables=_in_order(graph))


def _in_order(graph: Any) -> list[Any]:
    """Returns the variables of a traced function in the order of their first use; the graph keeps none.

    Distributed variables, not their copies: a copy holds only a weak reference to the one that is saved.
    """
    positions = {id(outside): position for position, (outside, _) in enumerate(graph.captures)}
    of_program = [one for one in graph.variables if not collective_clock.owns(one)]
    in_order = sorted(of_program, key=lambda one: positions.get(id(one.handle), len(positions)))
    return [tf_private.distributed(one) for one in in_order]


def has_traced(model: Any) -> bool:
    return state_of(model).traced is not None


def traced(model: Any) -> Traced:
    """Returns what the trace of the model's step has found; nothing where there was none."""
    return state_of(model).traced or Traced()


def check_trains(model: Any, graph: Any) -> None:
    """Raises UnsupportedError if a step was seen to update weights, and the graph that trains writes none.

    Nothing that happens while the step runs matters here: a learning rate of 0, a condition, or gradients
    that are not finite.
    """
    found = traced(model)
    written = {id(one) for one in tf_private.changed_variables(graph)}
    of_optimizers = [
        variable
        for one in found.optimizers
        for variable in (one.variables() if callable(one.variables) else one.variables)
    ]
    if not found.updated or written & tf_private.ids_of([*found.updated, *of_optimizers]):
        return
    where = described(type(model).train_step)
    raise UnsupportedError(
        f"{where} gives its optimizer gradients, but the first step that ran changed neither weights nor the "
        "optimizer's variables: it runs a graph from before the training, such as one that the step got by "
        "get_concrete_function and keeps; call the tf.function itself in each step"
    )


def _spec_of(component: Any) -> Any:
    return component if isinstance(component, tf.TypeSpec) else tf.type_spec_from_value(component)
