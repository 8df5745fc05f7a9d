"""What training changes besides the variables of a model, its optimizer and its metrics; and random state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.spec.text import listed
from raydist.training.checkpointing import variables
from raydist.training.keras_patches.adapters import adapter_of
from raydist.training.keras_patches.keras3 import adapter
from raydist.training.replicas import step_trace

_KERAS, _TENSORFLOW, _LAYERS = "random-keras", "random-tensorflow", "random-layers"
GROUPS: tuple[str, ...] = (_KERAS, _TENSORFLOW, _LAYERS)


def random_groups_of(model: Any) -> dict[str, list[Any]]:
    """Returns the variables that hold random state besides the model's own, in groups of a checkpoint."""
    found = {
        _KERAS: adapter.global_random_variables(),
        _TENSORFLOW: tf_private.global_random_variables(),
        _LAYERS: adapter_of(model).random_variables(model),
    }
    return {name: variables for name, variables in found.items() if variables}


def make_global_generators(names: set[str]) -> None:
    """Makes the global generators that a checkpoint has, if nothing has been drawn from them yet."""
    if _KERAS in names:
        adapter.make_global_generator()
    if _TENSORFLOW in names:
        tf.random.get_global_generator()  # makes it, unless it is there


UNLISTED = "state"


def unlisted_groups_of(model: Any) -> dict[str, list[Any]]:
    """Returns what training may change and no other group of a checkpoint holds: none or one, `UNLISTED`."""
    listed = [model, *([] if model.optimizer is None else [model.optimizer]), list(model.metrics)]
    known = {
        id(tf_private.distributed(one))
        for trackable in listed
        for one in variables.variables_of("", trackable)
    }
    for group in random_groups_of(model).values():
        known.update(id(tf_private.distributed(one)) for one in group)
    found: dict[int, Any] = {}
    for variable in _all_variables(model):
        if id(tf_private.distributed(variable)) not in known:
            found.setdefault(id(tf_private.distributed(variable)), variable)
    return {UNLISTED: list(found.values())} if found else {}


def describe(model: Any) -> str:
    """Returns what the group holds, by the names of its first variables."""
    found = unlisted_groups_of(model).get(UNLISTED, ())
    return f"variables {listed((one.name for one in found), most=5)}"


def unsaved(model: Any) -> Iterator[str]:
    """Yields a sentence for each kind of state that training may change and that no checkpoint holds."""
    found = list(_descendants(model))
    # Those of Keras's layers that look up a vocabulary: the train function makes it, and no step changes it.
    fixed = {id(getattr(one, name, None)) for one in found for name in ("lookup_table", "token_counts")}
    tables = [one for one in found if isinstance(one, _TABLES) and id(one) not in fixed]
    if tables:
        yield (
            f"checkpoints do not hold {len(tables)} mutable lookup table(s) of model {model.name}; "
            "a new attempt begins with them as the train function makes them"
        )
    if any(isinstance(one, tf.data.Iterator) for one in found):
        yield (
            f"checkpoints do not hold the tf.data iterators of model {model.name}; "
            "a new attempt starts them over"
        )
    adapter = adapter_of(model)
    optimizers = [one for one in found if adapter.is_optimizer(one) and one is not model.optimizer]
    for optimizer in optimizers:
        if not adapter.is_built(optimizer):
            yield (
                f"checkpoints do not hold optimizer {optimizer.name} of model {model.name}, which has no "
                "moments before its first update; build it: optimizer.build(variables)"
            )


_TABLES = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)


def _all_variables(model: Any) -> Iterator[Any]:
    traced, adapter = step_trace.traced(model), adapter_of(model)
    for trackable in [*_descendants(model), *traced.optimizers]:
        wrapped = adapter.wrapped_variable(trackable)
        if wrapped is not None:
            yield wrapped
        elif isinstance(trackable, (tf.Variable, tf.random.Generator)) or adapter.is_optimizer(trackable):
            yield from variables.variables_of("", trackable)
    yield from traced.variables


def _descendants(model: Any) -> Iterator[Any]:
    """Yields what `tf.train.Checkpoint` would save of a model, in the order of its attributes."""
    yield from tf.train.TrackableView(model).descendants()
