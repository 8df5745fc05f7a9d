"""What raydist asks of a model, of either Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.keras_patches.keras3 import trainer


def keras_of(model: Any) -> Any:
    """Returns the Keras that a model is of, as a module; raises UnsupportedError for what is no model."""
    if isinstance(model, keras.Model):
        return keras
    import tf_keras  # no Keras 3 model, so it is there already, or this is a mistake

    if isinstance(model, tf_keras.Model):
        return tf_keras
    raise UnsupportedError(
        f"ctx.fit got {type(model).__name__}; give a compiled keras.Model or tf_keras.Model"
    )


def check(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError for a model that cannot be trained under `strategy`."""
    if getattr(model, "optimizer", None) is None:
        raise UnsupportedError(f"model {model.name} is not compiled; call model.compile(...) before ctx.fit")
    if isinstance(model, keras.Model):
        trainer.check_supported(model, strategy)
    if model.distribute_strategy is not strategy:
        raise UnsupportedError(
            f"model {model.name} was made outside the strategy; build and compile it inside "
            "`with ctx.strategy.scope():`"
        )


def has_own_train_step(model: Any) -> bool:
    """Whether the model's class brings a `train_step` of the user's."""
    return type(model).train_step is not keras_of(model).Model.train_step


def converted(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a model's `train_step` or `test_step` as its own Keras would trace it."""
    if isinstance(model, keras.Model):
        return model._autoconvert_optionals(step)
    # Users of tf_keras write `if tensor:` in their own train_step.
    return tf.__internal__.autograph.tf_convert(step, tf.__internal__.autograph.control_status_ctx())
