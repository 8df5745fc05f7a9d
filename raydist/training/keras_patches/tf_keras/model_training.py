"""RaydistModel: how models of tf_keras train on several replicas; and metrics inside of a step.

Its methods do what is raydist's and call tf_keras's own by `super()`. data_handler.py decides which steps go
into a call, stepping/model_steps.py makes the functions that run them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras.src.engine import base_layer, training
from tf_keras.src.engine.sequential import Sequential
from tf_keras.src.utils import metrics_utils

from raydist import tf_private
from raydist.errors import UnsupportedError
from raydist.training.cluster import collective_calls, default_strategy
from raydist.training.cluster.strategy import is_central, is_parameter_server, scope_to_build
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.input import recipes
from raydist.training.keras_patches.replacement import lowered, overrides, replaces
from raydist.training.keras_patches.tf_keras import build, coordinated
from raydist.training.replicas import gradient_probe, gradients, replica_share, step_logs
from raydist.training.stepping import fit_session, model_steps, step_calls


@replaces(
    metrics_utils,
    "update_state_wrapper",
    "update_state_fn",
    because="a metric cannot be updated where the check of a model's own losses traces the step",
)
def update_state_wrapper(
    original: Callable[..., Any], update_state_fn: Callable[..., Any]
) -> Callable[..., Any]:
    wrapped = original(update_state_fn)

    def decorated(metric_obj: Any, *args: Any, **kwargs: Any) -> Any:
        probe = gradient_probe.active()
        if probe is None:
            return wrapped(metric_obj, *args, **kwargs)
        probe.note_given((args, kwargs))
        is_scalar = bool(args) and getattr(args[0], "shape", None) == ()
        if is_scalar and isinstance(metric_obj, tf_keras.metrics.Mean):
            is_weighted = len(args) > 1 or kwargs.get("sample_weight") is not None
            probe.note_mean(metric_obj, args[0], is_weighted=is_weighted)
        return tf.no_op()

    return tf.__internal__.decorator.make_decorator(update_state_fn, decorated)


@replaces(
    base_layer.Layer,
    "add_weight",
    "self ...",
    because="the check of a step leaves the strategy, and makes what the step makes in its first call",
)
def add_weight(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    probe = gradient_probe.active()
    # `compiled_loss` and `compiled_metrics` make metrics in their first call, layers their weights.
    with contextlib.nullcontext() if probe is None else tf_private.made_in_scope(probe.strategy):
        return original(self, *args, **kwargs)


@replaces(
    metrics_utils,
    "result_wrapper",
    "result_fn",
    "e266e01cef55",
    because="reading a metric in a step is an all-reduce per variable",
)
def result_wrapper(original: Callable[..., Any], result_fn: Callable[..., Any]) -> Callable[..., Any]:
    merged = original(result_fn)

    def decorated(metric_obj: Any, *args: Any) -> Any:
        if not replica_share.current.is_of_model:  # where it means this replica's own value
            return merged(metric_obj, *args)
        result = tf.nest.map_structure(tf.identity, result_fn(*args))
        metric_obj._call_result = result
        return result

    return tf.__internal__.decorator.make_decorator(result_fn, decorated)


def check_supported(model: Any, strategy: tf.distribute.Strategy) -> None:
    """Raises UnsupportedError for what trains to other weights on several devices, or notes that it may.

    Nadam notes in a Python variable which layer's update it is tracing (optimizers/nadam.py,
    `_u_product_counter`), and each device of a mirrored variable traces the updates of sparse gradients
    again. What the replicas of central_storage share it assigns once for each.
    """
    is_sparse = any(isinstance(layer, tf_keras.layers.Embedding) for layer in model._flatten_layers())
    num_devices = len(strategy.extended.worker_devices)
    if strategy.num_replicas_in_sync == 1 or not isinstance(model.optimizer, tf_keras.optimizers.Nadam):
        return
    # Virtual replicas share one update.
    if (is_sparse and num_devices > 1 and not is_virtual(strategy)) or is_central(strategy):
        where = "with central_storage" if is_central(strategy) else f"on {num_devices} devices of a task"
        what = "models" if is_central(strategy) else "embeddings"
        raise UnsupportedError(
            f"tf_keras's Nadam trains {what} to wrong weights {where}; use Adam, --keras 3, or --workers in "
            "place of --devices"
        )
    gradients.note_traced_updates()


_OUTSIDE = "a model that is built outside of its strategy's scope gets variables of no replica"
_REDUCED = "each step reduces each metric, and logs are summed twice (keras#16286)"
_StockModel: Any = lowered(
    training.Model,
    (
        *collective_calls.METHODS,
        *("make_train_function", "make_test_function", "make_predict_function"),
        *("_maybe_load_initial_counters_from_ckpt", "_validate_and_get_metrics_result"),
    ),
)


class RaydistModel(_StockModel):
    """How models of tf_keras train that were made in a strategy's scope; all others as tf_keras has them.

    It stands below `tf_keras.Model`, so a user's methods reach it by `super()`.
    """

    train_function: Any  # these are tf_keras's
    test_function: Any
    predict_function: Any

    @overrides(
        "self callbacks initial_epoch ...",
        because="several steps may go into one call where no callback watches batches",
    )
    @collective_calls.by_all
    def fit(self, *args: Any, **kwargs: Any) -> Any:
        recipes.refuse_in_keras(*args, *kwargs.values())
        is_stock = tf_private.is_default(self.distribute_strategy)
        if is_stock and not fit_session.is_in_task():
            return super().fit(*args, **kwargs)
        try:
            given = inspect.signature(super().fit).bind(*args, **kwargs)
        except TypeError:  # a mistake, which tf_keras's own `fit` names with the function
            return super().fit(*args, **kwargs)
        if is_parameter_server(self.distribute_strategy):
            coordinated.check_fit(given.arguments)
        elif not is_stock:
            check_supported(self, self.distribute_strategy)
        with fit_session.of_fit(self, given.arguments, tf_keras.callbacks):
            return super().fit(*given.args, **given.kwargs)

    @overrides("self ...", because=coordinated.COUNTS)
    @collective_calls.by_all
    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        with coordinated.on_chief(self):
            return super().evaluate(*args, **kwargs)

    @overrides("self ...", because=coordinated.COUNTS)
    @collective_calls.by_all
    def test_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        with coordinated.on_chief(self):
            return super().test_on_batch(*args, **kwargs)

    @overrides("self ...", because="in a callback it takes the coordinator of the fit away")
    @collective_calls.by_all
    def predict(self, *args: Any, **kwargs: Any) -> Any:
        with coordinated.without_coordinator(self):
            return super().predict(*args, **kwargs)

    @overrides("self ...", because=collective_calls.REASON)
    @collective_calls.by_all
    def predict_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        return super().predict_on_batch(*args, **kwargs)

    @overrides("self ...", because="the workers' functions get what the chief has")
    @collective_calls.by_all
    def train_on_batch(self, *args: Any, **kwargs: Any) -> Any:
        coordinated.refuse_train_on_batch(self)
        return super().train_on_batch(*args, **kwargs)

    @overrides("self force", "2c98267ffc1c", because=_REDUCED)
    def make_train_function(self, force: bool = False) -> Any:
        if _is_stock(self):
            return super().make_train_function(force)
        if self.train_function is None or force:
            self.train_function = _step_function(self, "train")
        return self.train_function

    @overrides("self force", "c0d12feaac61", because=_REDUCED)
    def make_test_function(self, force: bool = False) -> Any:
        if _is_stock(self):
            return super().make_test_function(force)
        if self.test_function is None or force:
            self.test_function = _step_function(self, "test")
        return self.test_function

    @overrides(
        "self force",
        "56a6ae779caf",
        because="global batches arrive as slices, whose padding examples must not be predicted",
    )
    def make_predict_function(self, force: bool = False) -> Any:
        if _is_stock(self) or (self.predict_function is not None and not force):
            return super().make_predict_function(force)
        predict = model_steps.make_predict_function(
            self, tf_private.converted(self.predict_step), of_shards=training.reduce_per_replica
        )

        def predict_function(call: Any) -> Any:
            elements = [*call] if isinstance(call, step_calls.StepCall) else [next(call)]
            if not elements:
                raise StopIteration
            return predict(elements)

        self.predict_function = predict_function
        return predict_function

    @overrides(
        "self steps_per_epoch initial_epoch",
        "fa3b05cb1c73",
        because="the hook by which a resumed run starts at its epoch",
    )
    def _maybe_load_initial_counters_from_ckpt(self, steps_per_epoch: Any, initial_epoch: int) -> Any:
        session = fit_session.current()
        if session is not None and session.first is not None:
            return session.first.epoch, session.first.step
        if not hasattr(self, "_training_state"):
            self._training_state = None  # BackupAndRestore of an earlier fit has deleted it
        return super()._maybe_load_initial_counters_from_ckpt(steps_per_epoch, initial_epoch)

    @overrides(
        "self logs",
        because="values of a user's own step that are not metrics differ from worker to worker",
    )
    def _validate_and_get_metrics_result(self, logs: Any) -> Any:
        # One collective in place of one for each variable that is read.
        collective_calls.keep_totals(self)
        results = super()._validate_and_get_metrics_result(logs)
        return results if _is_stock(self) else step_logs.of_epoch(self, logs, results)


def _is_stock(model: Any) -> bool:
    return bool(model._cluster_coordinator) or tf_private.is_default(model.distribute_strategy)


def _step_function(model: Any, kind: str) -> Callable[[Any], Any]:
    step, counter = getattr(model, f"{kind}_step"), getattr(model, f"_{kind}_counter")
    return model_steps.make_step_function(
        model,
        step,
        convert=tf_private.converted,
        is_training=kind == "train",
        finish=model._validate_and_get_metrics_result,
        build=functools.partial(build.build_ahead, model) if kind == "test" else lambda: None,
        after_step=lambda: counter.assign_add(1),
    )


@replaces(training.Model, "save save_weights export", "self filepath ...", because=default_strategy.ONE_FILE)
def _write(original: Callable[..., Any], self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    name = f"model.{original.__name__}"
    return default_strategy.write_once(name, filepath, lambda path: original(self, path, *args, **kwargs))


@replaces(training.Model, "__call__ build", "self ...", because=_OUTSIDE)
@replaces(Sequential, "build", "self ...", because=_OUTSIDE)
def in_own_scope(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    with scope_to_build(self, getattr(self, "_distribution_strategy", None)):
        return original(self, *args, **kwargs)


@replaces(
    base_layer.Layer,
    "load_own_variables",
    "self store",
    because="a metric that is an attribute takes arrays alone where it is summed over replicas",
)
def load_own_variables(original: Callable[..., None], self: Any, store: Any) -> None:
    # A file gives h5py's datasets, which tf.Variable takes, but TensorFlow cannot divide by the replicas.
    original(self, {name: np.asarray(store[name]) for name in store.keys()})
