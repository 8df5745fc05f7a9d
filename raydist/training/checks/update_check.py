"""Whether several batches can make one update of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.checks.rehearsal import Rehearsal
from raydist.training.replicas import batch_slices
from raydist.training.user_code import side_effects
from raydist.training.user_code.code_names import described, is_keras


def check_update(model: Any, step: Callable[[Any], Any], element_spec: Any) -> Rehearsal:
    """Returns a rehearsal of a step of which several batches can make one update, before the first is traced.

    It knows the amounts that losses divide by.

    Args:
      step: The model's `train_step` as its Keras traces it, for one replica's batch.
      element_spec: The type of an element of the distributed data.

    Raises:
      UnsupportedError: They cannot.
    """
    own = tf_private.spec_of_replica(element_spec)
    where = described(type(model).train_step)
    try:
        spec = tf.nest.map_structure(batch_slices.relaxed_spec, batch_slices.own_rows_of(own))
        with side_effects.undone(model):
            rehearsal = Rehearsal(
                step,
                strategy=model.distribute_strategy,
                spec=spec,
                num_replicas=1,
                model=model,
                records_amounts=True,
            )
    except Exception as error:  # the user's code
        raise UnsupportedError(
            f"ctx.fit got accumulate, and {where} could not be traced for one batch by itself "
            f"({type(error).__name__}: {error}); leave accumulate out"
        ) from error
    problem = None if is_keras(type(model).train_step) else _problem(model, rehearsal)
    if problem is not None:
        raise UnsupportedError(
            f"ctx.fit got accumulate, but {where} {problem}, so its batches cannot make one update; leave "
            "accumulate out, or give the optimizer the gradients of the batch once, as they are"
        )
    return rehearsal


def _problem(model: Any, rehearsal: Rehearsal) -> str | None:
    """Returns what keeps several batches from making one update; None where nothing does."""
    if len(rehearsal.updates) != 1:
        return f"updates weights {len(rehearsal.updates)} times in a step"
    if rehearsal.reduces_itself:
        return "adds up its gradients over replicas by itself"
    if rehearsal.clips_gradients:
        return "clips or rescales the gradients of each batch by itself"
    layers = list(model._flatten_layers(include_self=False))
    # What training changes of layers, also of frozen ones, and what changes with each batch by itself.
    weights = tf_private.ids_of([variable for one in layers for variable in _weights_of(one)])
    owners = (*layers, *model.metrics)
    known = tf_private.ids_of([variable for one in owners for variable in (*one.variables, *_seeds_of(one))])
    assigned = tf_private.assigned_variables(rehearsal.graph)
    changed = [one for one in assigned if id(one) in weights or id(one) not in known]
    if changed:
        return f"assigns to {', '.join(str(one.name) for one in changed[:3])} after each batch"
    return None


def _weights_of(layer: Any) -> list[Any]:
    is_keras_3 = hasattr(layer, "_trainable_variables")
    return list(getattr(layer, "_trainable_variables" if is_keras_3 else "_trainable_weights", ()))


def _seeds_of(layer: Any) -> list[Any]:
    return [one.state for one in getattr(layer, "_seed_generators", ())]
