"""What raydist asks of a model of Keras 3."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

from raydist.training.input.reshuffles import Unread
from raydist.training.input.resume import Start
from raydist.training.keras_patches.keras3 import build, class_weights, epochs, serving, trainer
from raydist.training.stepping.fit_session import FitSession


class Keras3:
    """See `adapters.KerasAdapter`."""

    library = keras
    continues_py_datasets = True
    continues_validation = True
    opens_sizes = False
    unread = Unread.AFTER_PASS
    has_sharded_variables = False

    def check_supported(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        trainer.check_supported(model, strategy)

    def steps_taken(self, model: Any, asked: int | None) -> int | None:
        return epochs.in_whole_calls(asked, model.steps_per_execution)

    def build(self, model: Any, element_spec: Any) -> None:
        build.build(model, element_spec)

    def begin_fit(self, model: Any, element_spec: Any, *, first: Start, session: FitSession | None) -> None:
        # `fit` has built the model, and ctx.fit has said where it begins.
        if element_spec is not None:
            return
        model._initial_epoch = first.epoch  # read right after on_train_begin, for BackupAndRestore
        if session is not None:
            session.first = first

    def end_training(self, model: Any) -> None:
        model.optimizer.finalize_variable_values(model.trainable_variables)

    def class_weights(self, class_weight: Mapping[int, float]) -> Callable[..., Any]:
        return class_weights.of_batches(class_weight)

    def is_optimizer(self, value: Any) -> bool:
        return isinstance(value, keras.optimizers.Optimizer)

    def is_built(self, optimizer: Any) -> bool:
        return bool(optimizer.built)

    def wrapped_variable(self, value: Any) -> Any:
        return value.value if isinstance(value, backend.Variable) else None

    def knows_inputs(self, model: Any) -> bool:
        return isinstance(model, keras.Sequential)  # those of functional models would be known, too

    def random_variables(self, model: Any) -> list[tf.Variable]:
        return []  # its layers list their generators among the model's variables

    def serving(
        self, model: Any
    ) -> AbstractContextManager[tuple[Callable[[Any], Any], list[Any], list[Any]]]:
        return serving.serving(model)

    def converted(self, model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return build.converted(model, step)


def global_random_variables() -> list[tf.Variable]:
    """Returns the state of the generator that `keras.random` draws from without a seed, if it is there."""
    generator = global_state.get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state.value]


def make_global_generator() -> None:
    """Makes that generator, unless it is there."""
    seed_generator.global_seed_generator()
