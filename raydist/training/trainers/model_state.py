"""All that training changes beside a model's own variables, its optimizer's, its metrics and random state.

Keras lists the variables of layers and of the compiled optimizer. A GAN's two optimizers are attributes of
the
model, a moving average of weights may be a plain `tf.Variable`: Keras trains with them and lists neither.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from raydist.training import tf_private
from raydist.training.checkpointing import variables
from raydist.training.replicas.gradient_probe import Probe, Update, counters_kept
from raydist.training.trainers import random_state

logger = logging.getLogger(__name__)

GROUP = "state"


@dataclass
class Traced:
    """What a trace of the training step has used.

    Attributes:
      optimizers: Those that were given gradients, in order.
      variables: Those that were read, in order.
    """

    optimizers: list[Any] = field(default_factory=list)
    variables: list[Any] = field(default_factory=list)


_traced: weakref.WeakKeyDictionary[Any, Traced] = weakref.WeakKeyDictionary()


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
      step: Called with one replica's batch.
      element_spec: The structure of one replica's batch: types, or values.
      build: Builds an optimizer for the variables that it will update.
    """
    probe = Probe(model.distribute_strategy)
    updates: list[Update] = []

    @tf.autograph.experimental.do_not_convert
    def traced(batch: Any) -> None:
        # Inside: layers that it builds are made outside of the graph, in the scope that holds there.
        with tf_private.as_one_of(1):
            updates.extend(probe.collect(lambda: step(batch)))

    specs = tf.nest.map_structure(_spec_of, element_spec)
    try:
        with counters_kept(model):
            graph = tf.function(traced, autograph=False).get_concrete_function(specs).graph
    except Exception as error:
        logger.info("train_step of %s could not be traced: %s", model.name, error, exc_info=True)
        return
    with model.distribute_strategy.scope():
        for update in updates:
            build(update.optimizer, update.variables)
    optimizers = list({id(update.optimizer): update.optimizer for update in updates}.values())
    _traced[model] = Traced(optimizers=optimizers, variables=_in_order(graph))


def _in_order(graph: Any) -> list[Any]:
    """Returns the variables of a traced function in the order of their first use; the graph keeps none."""
    positions = {id(outside): position for position, (outside, _) in enumerate(graph.captures)}
    return sorted(graph.variables, key=lambda one: positions.get(id(one.handle), len(positions)))


def has_traced(model: Any) -> bool:
    """Whether `trace_step` has succeeded."""
    return model in _traced


def groups_of(model: Any) -> dict[str, list[Any]]:
    """Returns the variables in groups of a checkpoint: none or one, `GROUP`."""
    listed = [model, *([] if model.optimizer is None else [model.optimizer]), list(model.metrics)]
    known = {id(_distributed(one)) for trackable in listed for one in variables.variables_of("", trackable)}
    for group in random_state.groups_of(model).values():
        known.update(id(_distributed(one)) for one in group)
    found: dict[int, Any] = {}
    for variable in _all_variables(model):
        if id(_distributed(variable)) not in known:
            found.setdefault(id(_distributed(variable)), variable)
    return {GROUP: list(found.values())} if found else {}


def describe(model: Any) -> str:
    """Returns what the group holds, by the names of its first variables."""
    names = [str(variable.name) for variable in groups_of(model).get(GROUP, ())]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"variables {', '.join(names[:_MAX_NAMES])}{more}"


def unsaved(model: Any) -> Iterator[str]:
    """Yields a sentence for each kind of state that training may change and that no checkpoint holds."""
    found = list(_descendants(model))
    tables = [one for one in found if isinstance(one, _TABLES)]
    if tables:
        yield (
            f"checkpoints do not hold {len(tables)} mutable lookup table(s) of model {model.name}; "
            "a new attempt begins with them as the train function makes them"
        )
    if any(isinstance(one, tf.data.Iterator) for one in found):
        yield (
            f"checkpoints do not hold the tf.data iterators of model {model.name}; "
            "a new attempt begins them anew"
        )
    optimizers = [one for one in found if _is_optimizer(one) and one is not model.optimizer]
    for optimizer in optimizers:
        if not variables.variables_of("", optimizer):
            yield (
                f"checkpoints do not hold optimizer {optimizer.name} of model {model.name}, which has no "
                "variables before its first update; build it: optimizer.build(variables)"
            )


_MAX_NAMES = 5
_TABLES = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)


def _all_variables(model: Any) -> Iterator[Any]:
    traced = _traced.get(model, Traced())
    for trackable in [*_descendants(model), *traced.optimizers]:
        if _is_keras_variable(trackable):
            yield trackable.value
        elif _has_state(trackable):
            yield from variables.variables_of("", trackable)
    for variable in traced.variables:
        yield _distributed(variable)


def _descendants(model: Any) -> Iterator[Any]:
    """Yields what `tf.train.Checkpoint` would save of a model, in the order of its attributes."""
    yield from tf.train.TrackableView(model).descendants()


def _has_state(trackable: Any) -> bool:
    if isinstance(trackable, (tf.Variable, tf.random.Generator)):
        return True
    return _is_optimizer(trackable)


def _is_optimizer(trackable: Any) -> bool:
    """Whether it is an optimizer of either Keras. It lists its variables once it is built."""
    return any(
        base.__name__ in ("BaseOptimizer", "_BaseOptimizer", "OptimizerV2")
        for base in type(trackable).__mro__
    )


def _is_keras_variable(trackable: Any) -> bool:
    """Whether it is a variable of Keras 3, which wraps the tf.Variable."""
    return any(base.__name__ == "KerasVariable" for base in type(trackable).__mro__)


def _distributed(variable: Any) -> Any:
    """Returns the mirrored variable that a replica's copy belongs to; any other variable itself."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable
    # TensorFlow hangs a weak reference on the copy or on its handle (distribute/values.py).
    for holder in (variable, variable.handle):
        container: Callable[[], Any] | None = getattr(holder, "_distributed_container", None)
        if container is not None and container() is not None:
            return container()
    return variable


def _spec_of(component: Any) -> Any:
    return component if isinstance(component, tf.TypeSpec) else tf.type_spec_from_value(component)
