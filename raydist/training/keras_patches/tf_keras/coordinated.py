"""tf_keras under ParameterServerStrategy: its `fit` trains on the workers, its other calls run on the chief.

Stock tf_keras evaluates on the workers, each on a whole copy of the data from wherever it stands: some
examples count twice, others never. `compile(pss_evaluation_shards=…)`, its exact evaluation, stays.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src.engine import data_adapter

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster.strategy import is_parameter_server
from raydist.training.input import cut
from raydist.training.keras_patches.replacement import replaces

COUNTS = "evaluation under ParameterServer counts some examples twice, others never"

DatasetCreator = tf_keras.utils.experimental.DatasetCreator


def is_on_chief(model: Any) -> bool:
    """Whether a model's evaluation runs on the chief of ParameterServerStrategy."""
    exact = getattr(model, "_pss_evaluation_shards", 0)  # set by `compile`
    return is_parameter_server(model.distribute_strategy) and not exact


@contextlib.contextmanager
def on_chief(model: Any) -> Iterator[None]:
    """Around `evaluate` or `test_on_batch` of a model, which run as if the strategy had no coordinator."""
    if not is_on_chief(model):
        yield
        return
    with (
        tf_private.changed(model.distribute_strategy, _should_use_with_coordinator=False),
        tf_private.changed(model, _cluster_coordinator=None),
    ):
        yield


def without_coordinator(model: Any) -> AbstractContextManager[None]:
    """Around `predict`, which tf_keras too has on the chief; a `fit` around it keeps its coordinator."""
    if not is_parameter_server(model.distribute_strategy):
        return contextlib.nullcontext()
    return tf_private.changed(model, _cluster_coordinator=None)


def whole_dataset(adapter: Any, given: Any) -> Any:
    """Returns what the chief evaluates, all of it."""
    cut.refuse_distributed(given)
    if isinstance(given, DatasetCreator):
        return given(tf.distribute.InputContext())
    return adapter.get_dataset()


def refuse_train_on_batch(model: Any) -> None:
    """Raises UnsupportedError for a model under ParameterServerStrategy."""
    if is_parameter_server(model.distribute_strategy):
        raise UnsupportedError(
            "tf_keras's model.train_on_batch cannot train under parameter_server, whose chief runs no steps; "
            "use model.fit, ctx.fit or ctx.train_steps"
        )


def check_fit(given: Mapping[str, Any]) -> None:
    """Raises UnsupportedError for a `fit` that would train on other data than these arguments give it."""
    data, steps = given.get("x"), given.get("steps_per_epoch")
    cut.refuse_distributed(given.get("validation_data"))
    for name in ("sample_weight", "class_weight"):
        if given.get(name) is not None:  # tf_keras drops both on their way to the workers
            raise UnsupportedError(
                f"model.fit takes no {name} under parameter_server; give a dataset of (x, y, weights), or "
                "use ctx.fit"
            )
    if steps is None:
        raise UnsupportedError(
            "model.fit needs steps_per_epoch under parameter_server. Set it to the number of examples // the "
            "batch size, and add repeat() to the dataset"
        )
    num_epochs = given.get("epochs", 1) - (given.get("initial_epoch") or 0)
    size = int(data.cardinality()) if isinstance(data, tf.data.Dataset) else tf.data.UNKNOWN_CARDINALITY
    # tf_keras begins a dataset anew in each epoch if it is as long as the epoch. Each worker has all of it,
    # so a shorter one may last.
    num_workers = sum("/job:worker/" in one.name for one in tf.config.list_logical_devices("CPU"))
    if 0 <= size * num_workers < steps * num_epochs and size != steps:
        raise _too_short(steps, num_epochs)


@replaces(
    data_adapter.DataHandler,
    "catch_stop_iteration",
    "self",
    because="data of ParameterServer's workers that end are a bare CancelledError",
)
@contextlib.contextmanager
def catch_stop_iteration(original: Callable[..., Any], self: Any) -> Iterator[None]:
    """Around the steps of an epoch; says that the data of the workers have ended, where Keras only warns."""
    with original(self):
        yield
    # Keras would go on with what was to be computed of the missing batches: a bare CancelledError.
    if isinstance(self, data_adapter._ClusterCoordinatorDataHandler) and self._insufficient_data:
        raise _too_short(self._inferred_steps, self._epochs - self._initial_epoch)


def _too_short(steps: int, num_epochs: int) -> UnsupportedError:
    return UnsupportedError(
        f"the data of model.fit end too early: it needs {steps * num_epochs} batches ({num_epochs} epochs of "
        f"{steps} steps). Add repeat() to the dataset, or use ctx.fit"
    )
