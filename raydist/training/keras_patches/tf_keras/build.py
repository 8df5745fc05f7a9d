"""Builds a tf_keras model before its first step, so that it can be restored.

Keras 3 does so at the start of `fit`.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import data_adapter

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.input import walk
from raydist.training.keras_patches.tf_keras import optimizers
from raydist.training.replicas import batch_slices, replica_share, step_trace
from raydist.training.replicas.gradient_probe import Probe
from raydist.training.replicas.model_states import LossRule
from raydist.training.user_code import side_effects

logger = logging.getLogger(__name__)


_specs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
# The losses with which a model was compiled when its step was traced.
_traced_losses: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def note_spec(model: Any, element_spec: Any) -> None:
    """Keeps the structure of a batch of the data that `fit` was just given, for `build` without one."""
    _specs[model] = element_spec


def build(model: Any, element_spec: Any) -> None:
    """Builds a model, its optimizers and metrics from the shapes of a batch.

    Without `element_spec` it is that of the data of the last `fit`. A model with a `train_step` of its
    own may have no `call`, or one for other inputs; its step then builds it.

    Raises:
      UnsupportedError: The model is not built, and there is nothing to build it from.
    """
    element_spec = _specs.get(model) if element_spec is None else element_spec
    if element_spec is None:
        if not model.built:
            raise UnsupportedError(
                f"model {model.name} is not built, so ctx.callbacks() cannot restore it; "
                "give it an Input layer, or call ctx.fit"
            )
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
        return
    has_own_step = type(model).train_step is not tf_keras.Model.train_step
    try:
        _rehearse(model, lambda: _build_by_call(model, element_spec, has_own_step=has_own_step))
        if hasattr(model.optimizer, "build"):
            with model.distribute_strategy.scope():
                model.optimizer.build(model.trainable_variables)
    except Exception as error:
        if not has_own_step:
            raise
        logger.info("%s is built by its train_step: %s", model.name, error)
    if has_own_step and (model.train_function is None or not _is_traced(model)):
        step = tf_private.converted(model.train_step)
        if not all(layer.built for layer in model._flatten_layers()):
            _build_in_replicas(model, step, element_spec)
        step_trace.trace_step(model, step, element_spec, build=optimizers.build)
        _traced_losses[model] = weakref.ref(model.compiled_loss)


def build_ahead(model: Any) -> None:
    """Builds a model that `fit` would build in its first step: the check of that step needs its weights."""
    if model not in _specs or all(layer.built for layer in model._flatten_layers()):
        return
    try:
        build(model, None)
    except Exception as error:  # of the user's layers; the first step shows it where it belongs
        logger.info("%s is built by its first step: %s", model.name, error)


def _is_traced(model: Any) -> bool:
    """Whether the step was traced since the model was compiled; `fit` makes its function before it builds."""
    of_losses = _traced_losses.get(model)
    return of_losses is not None and of_losses() is model.compiled_loss and step_trace.has_traced(model)


def _rehearse(model: Any, call: Callable[[], None]) -> None:
    """Has a call of a model build it and change nothing else, in its strategy's scope.

    It is traced and not run, as in `Model.build`. What runs eagerly may not be traceable: of what it changes,
    the variables that are there are set back.
    """
    with model.distribute_strategy.scope(), side_effects.undone(model):
        try:
            with tf.__internal__.FuncGraph("build_graph").as_default():
                call()
        except Exception:
            if not model.run_eagerly:
                raise
            variables = [one for one in model.variables if isinstance(one, tf.Variable)]  # and vocabularies
            before = [(one, one.numpy()) for one in variables]
            call()
            for variable, value in before:
                variable.assign(value)


def _build_in_replicas(model: Any, step: Callable[[Any], Any], element_spec: Any) -> None:
    """Traces a step as replicas will, without applying gradients: its layers make their variables in it."""
    probe = Probe(model.distribute_strategy)

    def on_replica(batch: Any) -> None:
        with replica_share.use_share(None, LossRule.LOCAL_MEAN):  # which refuses no loss object
            step(batch)

    @tf.autograph.experimental.do_not_convert
    def on_replicas(batch: Any) -> None:
        probe.collect(lambda: model.distribute_strategy.run(on_replica, args=(batch,)))

    try:
        with side_effects.undone(model):
            tf.function(on_replicas, autograph=False).get_concrete_function(element_spec)
    except Exception as error:  # the user's code; the first step shows what is wrong
        logger.info("train_step of %s could not be traced: %s", model.name, error, exc_info=True)


def _build_by_call(model: Any, element_spec: Any, *, has_own_step: bool) -> None:
    inputs, targets, _ = data_adapter.unpack_x_y_sample_weight(batch_slices.zeros_of(element_spec))
    # As with data that Python makes.
    if not walk.has_static_rows(element_spec) and getattr(model, "inputs", None):
        inputs = batch_slices.zeros_of(model.input)
    outputs = model(inputs)
    if has_own_step:
        return  # only the step knows what it gives to the losses and metrics
    # Metrics make their variables when they are built, which is otherwise in the first step. A model whose
    # layers give all of its losses has no targets, and a metric of its loss all the same.
    for container in (model.compiled_loss, model.compiled_metrics):
        is_loss = container is model.compiled_loss
        if not container.built and (is_loss or targets is not None):
            # Targets of another structure than the outputs', as with a loss for some of them only.
            with contextlib.suppress(TypeError, ValueError):
                container.build(*((outputs,) if is_loss else (outputs, targets)))
