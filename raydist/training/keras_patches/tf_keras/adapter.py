"""What raydist asks of a model of tf_keras."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import data_adapter

from raydist import tf_private
from raydist.tf_private import ShardedVariable, own_attributes
from raydist.training.cluster.strategy import is_parameter_server
from raydist.training.input.shuffle_seeds import Unread
from raydist.training.input.sources import Start
from raydist.training.input.train_data import NO_WEIGHT, classes_of
from raydist.training.input.walk import CLASS_WEIGHT
from raydist.training.keras_patches.tf_keras import build
from raydist.training.stepping.fit_session import FitSession


@contextmanager
def serving(model: Any) -> Iterator[tuple[Callable[[Any], Any], list[Any], list[Any]]]:
    """Yields a function of a batch's inputs, and plain variables to fill for it; see `KerasAdapter.serving`.

    Inside of the block the plain variables are in the places of the model's own, so trace the function there.
    """
    own = [one for one in model.variables if isinstance(one, (tf.Variable, ShardedVariable))]
    values = [_plain(one) for one in own]
    plain = {id(old): new for old, new in zip(own, values, strict=True)}
    # A `call` may update metrics, whose own variables only all workers together can read.
    metrics = {id(one): _plain(one) for metric in model.metrics for one in metric.variables}
    metrics = {key: one for key, one in metrics.items() if key not in plain}
    plain.update(metrics)

    def serve(inputs: Any) -> Any:
        return model(inputs, training=False)

    replaced = [
        (one, name, new)
        for one in (model, *model.submodules)
        for name, value in vars(one).items()
        if (new := _replaced(value, plain)) is not value
    ]
    with own_attributes(replaced):
        yield serve, values, list(metrics.values())


def _plain(variable: Any) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape, variable.dtype), trainable=False)


def _replaced(value: Any, plain: dict[int, tf.Variable]) -> Any:
    """Returns a value with plain variables in it; itself where it has none."""
    if isinstance(value, (list, tuple)) and any(id(one) in plain for one in value):
        return [plain.get(id(one), one) for one in value]
    if isinstance(value, dict) and any(id(one) in plain for one in value.values()):
        return {key: plain.get(id(one), one) for key, one in value.items()}
    return plain.get(id(value), value)


class TfKeras:
    """See `adapters.KerasAdapter`."""

    library = tf_keras
    continues_py_datasets = False
    ends_epochs_with_arrays = False
    continues_validation = False
    opens_sizes = True
    unread = Unread.AT_FIRST
    has_sharded_variables = True

    build = staticmethod(build.build)
    serving = staticmethod(serving)

    def check_supported(self, model: Any, strategy: tf.distribute.Strategy) -> None:
        """Everything is."""

    def steps_taken(self, model: Any, asked: int | None) -> int | None:
        return asked

    def begin_fit(self, model: Any, element_spec: Any, *, first: Start, session: FitSession | None) -> None:
        if element_spec is None or not is_parameter_server(model.distribute_strategy):
            build.build(model, element_spec)
        if session is not None:
            session.first = first

    def end_training(self, model: Any) -> None:
        # Legacy optimizers have no such method.
        if hasattr(model.optimizer, "finalize_variable_values"):
            model.optimizer.finalize_variable_values(model.trainable_variables)

    def class_weights(self, class_weight: Mapping[int, float]) -> Callable[..., Any]:
        weighted = data_adapter._make_class_weight_map_fn(class_weight)
        weights = tf.constant([class_weight[one] for one in sorted(class_weight)])

        @tf.autograph.experimental.do_not_convert
        def checked(*batch: Any) -> Any:
            if len(batch) < 2 or tf.nest.is_nested(batch[1]):
                return weighted(*batch)  # which refuses it
            classes = classes_of(batch[1])
            count = tf.constant(len(class_weight), classes.dtype)
            with tf.control_dependencies([tf.debugging.assert_less(classes, count, message=NO_WEIGHT)]):
                # The first shows that it treats each row by itself.
                return (*batch, tf.gather(weights, classes)) if len(batch) == 2 else weighted(*batch)

        checked.__qualname__ = CLASS_WEIGHT
        return checked

    def is_optimizer(self, value: Any) -> bool:
        return isinstance(value, (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer))

    def is_built(self, optimizer: Any) -> bool:
        # Legacy optimizers do not say.
        is_legacy = isinstance(optimizer, tf_keras.optimizers.legacy.Optimizer)
        return is_legacy or bool(getattr(optimizer, "_built", False))

    def wrapped_variable(self, value: Any) -> Any:
        return None  # its variables are tf.Variables

    def knows_inputs(self, model: Any) -> bool:
        return isinstance(model, tf_keras.Sequential) or bool(model._is_graph_network)

    def random_variables(self, model: Any) -> list[tf.Variable]:
        # Generators of layers, which tf_keras does not list as variables.
        generators = (
            getattr(getattr(layer, "_random_generator", None), "_generator", None)
            for layer in model._flatten_layers()
        )
        return [generator.state for generator in generators if generator is not None]

    def converted(self, model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return tf_private.converted(step)
