"""Builds a Keras 3 model before its first step, with all that a user's own step makes in it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import keras

from raydist.training import tf_private
from raydist.training.checkpointing import step_trace
from raydist.training.input import resume
from raydist.training.keras_patches.keras3 import optimizers

logger = logging.getLogger(__name__)


def build(model: Any, element_spec: Any) -> None:
    """Builds a model, its optimizers and metrics from the structure of a batch, in the strategy's scope.

    A model with its own `train_step` may have no `call`, or one for other inputs. Its step then builds it.
    """
    has_own_step = type(model).train_step is not keras.Model.train_step
    with model.distribute_strategy.scope():
        try:
            model._symbolic_build(data_batch=element_spec)
        except Exception as error:
            if not has_own_step:
                raise
            logger.info("%s is built by its train_step: %s", model.name, error)
    is_new = model.train_function is None or not step_trace.has_traced(model)
    if has_own_step and model.optimizer is not None and is_new:
        step = converted(model, model.train_step)
        step_trace.trace_step(model, step, element_spec, build=optimizers.build)


def converted(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a model's step as Keras would trace it: from 3.12 on without `tf.experimental.Optional`s."""
    convert = getattr(model, "_autoconvert_optionals", None)
    found: Callable[[Any], Any] = step if convert is None else convert(step)
    return found


def make_symbolic_build(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = self._distribute_strategy
        if strategy is None or tf_private.is_default(strategy):
            original(self, iterator, data_batch)
            return
        if iterator is not None:
            # Shapes and types are enough; reading a batch would also advance a shuffle's seed.
            data_batch = resume.element_spec(iterator.data_adapter.get_tf_dataset())
        build(self, data_batch)

    return _maybe_symbolic_build
