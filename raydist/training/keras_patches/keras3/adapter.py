"""What raydist asks of a model of Keras 3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional
from keras.src.random import seed_generator

from raydist.errors import UnsupportedError
from raydist.training.input.shuffle_seeds import Unread
from raydist.training.input.sources import Start
from raydist.training.input.train_data import classes_of, weights_of_classes
from raydist.training.input.walk import CLASS_WEIGHT
from raydist.training.keras_patches.keras3 import epochs, trainer
from raydist.training.stepping.fit_session import FitSession


def of_batches(class_weight: Mapping[int, float]) -> Callable[..., Any]:
    """Returns a function of `(x, y)` that adds the weight of each label's class; 1.0 if it has none."""
    weights_of = weights_of_classes(class_weight, keras.backend.floatx())

    @tf.autograph.experimental.do_not_convert  # which would put its own words around an error
    def weighted(*batch: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        if sample_weight is not None:
            raise UnsupportedError(
                "class_weight is given, and the batches hold sample weights (x, y, sample_weight); give one "
                "of them, as to Keras"
            )
        if tf.nest.is_nested(y):
            raise UnsupportedError(
                "class_weight is given, and the labels are several; Keras takes it for models with one output"
            )
        return x, y, weights_of(classes_of(y))

    weighted.__qualname__ = CLASS_WEIGHT
    return weighted


@contextmanager
def serving(model: Any) -> Iterator[tuple[Callable[[Any], Any], list[Any], list[Any]]]:
    """Yields a function of a batch's inputs, and plain variables to fill for it; see `KerasAdapter.serving`.

    The variables stand for `model.variables`, in their order. Enter it outside of every strategy's scope.
    """
    values = [tf.Variable(tf.zeros(one.shape, one.dtype), trainable=False) for one in model.variables]
    # A `call` may update metrics, whose own variables only all workers together can read.
    metrics = [(one, tf.zeros(one.shape, one.dtype)) for one in model.metrics_variables]

    def serve(inputs: Any) -> Any:
        held = [(old, tf.identity(new)) for old, new in zip(model.variables, values, strict=True)]
        with keras.StatelessScope(state_mapping=[*held, *metrics]):
            return model(inputs, training=False)

    yield serve, values, []


class Keras3:
    """See `adapters.KerasAdapter`."""

    library = keras
    continues_py_datasets = True
    ends_epochs_with_arrays = True
    continues_validation = True
    opens_sizes = False
    unread = Unread.AFTER_PASS
    has_sharded_variables = False

    check_supported = staticmethod(trainer.check_supported)
    build = staticmethod(trainer.build)
    class_weights = staticmethod(of_batches)
    serving = staticmethod(serving)
    converted = staticmethod(trainer.converted_step)

    def steps_taken(self, model: Any, asked: int | None) -> int | None:
        return epochs.in_whole_calls(asked, model.steps_per_execution)

    def begin_fit(self, model: Any, element_spec: Any, *, first: Start, session: FitSession | None) -> None:
        # `fit` has built the model, and ctx.fit has said where it begins.
        if element_spec is not None:
            return
        model._initial_epoch = first.epoch  # read right after on_train_begin, for BackupAndRestore
        if session is not None:
            session.first = first

    def end_training(self, model: Any) -> None:
        model.optimizer.finalize_variable_values(model.trainable_variables)

    def is_optimizer(self, value: Any) -> bool:
        return isinstance(value, keras.optimizers.Optimizer)

    def is_built(self, optimizer: Any) -> bool:
        return bool(optimizer.built)

    def wrapped_variable(self, value: Any) -> Any:
        return value.value if isinstance(value, backend.Variable) else None

    def knows_inputs(self, model: Any) -> bool:
        return isinstance(model, (keras.Sequential, Functional))

    def random_variables(self, model: Any) -> list[tf.Variable]:
        return []  # its layers list their generators among the model's variables


def global_random_variables() -> list[tf.Variable]:
    """Returns the state of the generator that `keras.random` draws from without a seed, if it is there."""
    generator = global_state.get_global_attribute("global_seed_generator")
    return [] if generator is None else [generator.state.value]


def make_global_generator() -> None:
    """Makes that generator, unless it is there."""
    seed_generator.global_seed_generator()
