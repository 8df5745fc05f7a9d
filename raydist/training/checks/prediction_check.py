"""Finds predictions that depend on how a batch is divided, which no training step may have shown before.

In come a model, its `predict_step` and the first batch; out goes a note on the run. stepping/model_steps.py
calls it once for each function that predicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from raydist.training.checks import dependence, layer_notes, rehearsal, step_rules
from raydist.training.checks.rehearsal import LayerCall, Rehearsal
from raydist.training.replicas import batch_slices
from raydist.training.reporting import reporter
from raydist.training.user_code import code_names, side_effects


def note_mixed_rows(model: Any, step: Callable[[Any], Any], element: Any) -> None:
    """Notes, on several replicas, a step whose rows depend on the other examples of their batch.

    Args:
      model: Built, as it is after its first batch.
      step: Its `predict_step` as its Keras traces it, for one replica's batch.
    """
    if not rehearsal.is_enabled() or model.distribute_strategy.num_replicas_in_sync == 1:
        return
    layers = layer_notes.may_compare(model, is_training=False)
    if not layers and code_names.is_keras(type(model).predict_step):
        return
    layers = [one for one in layers if one is not model]
    try:
        with side_effects.undone(model):
            found = _mixing_layers(model, step, element, layers)
    except Exception as error:  # the user's code, on a part of a batch
        step_rules.report_failure(f"the predictions of {model.name}", error)
        return
    if found:
        reporter.note(layer_notes.describe_comparing(found))


def _mixing_layers(model: Any, step: Callable[[Any], Any], element: Any, layers: list[Any]) -> list[Any]:
    """Returns the layers by which rows depend on others; the model itself if none of them can be told."""
    step, batch = batch_slices.on_own_rows(model.distribute_strategy, step, element)
    if int(batch_slices.num_rows(batch)) == 1:
        batch = tf.nest.map_structure(_beside_another, batch)
    outputs: list[tf.Tensor] = []

    def noted(given: Any) -> None:
        returned = tf.nest.flatten(step(given), expand_composites=True)
        outputs[:] = [one for one in returned if tf.is_tensor(one)]

    spec = tf.nest.map_structure(batch_slices.relaxed_spec, batch)
    strategy = model.distribute_strategy
    checked = Rehearsal(noted, strategy=strategy, spec=spec, num_replicas=2, model=model, layers=layers)
    if not dependence.mixes_rows(checked, batch, outputs):
        return []
    checked.layer_calls.append(LayerCall(model, (), outputs))
    return dependence.mixing_layers(checked, checked, batch, model=model)[0] or [model]


def _beside_another(row: tf.Tensor) -> tf.Tensor:
    """Returns a single row and one of the same values in another order: of one value, and zero."""
    is_reversible = int(tf.size(row)) > 1
    other = tf.reverse(row, range(1, row.shape.rank)) if is_reversible else tf.zeros_like(row)
    return tf.concat([row, other], axis=0)
