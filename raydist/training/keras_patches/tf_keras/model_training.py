"""tf_keras's `fit`, the functions that it makes of a model's steps, and metrics inside of a step."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from tf_keras.src.engine import training

from raydist.errors import UnsupportedError
from raydist.training import tf_private
from raydist.training.checkpointing import step_trace
from raydist.training.cluster import collective_calls
from raydist.training.cluster.strategy import is_central, is_parameter_server, scope_to_build
from raydist.training.cluster.virtual_strategy import is_virtual
from raydist.training.input import recipes
from raydist.training.keras_patches.tf_keras import build, coordinated
from raydist.training.replicas import code_names, gradient_probe, gradients, own_logs
from raydist.training.stepping import fit_session, model_steps, plain_fit, step_calls


class _LocalResults(threading.local):
    """Whether `metric.result()` means this replica's own value, in the thread that traces a step."""

    active = False


_local_results = _LocalResults()


def update_state_wrapper(
    original: Callable[..., Any], update_state_fn: Callable[..., Any]
) -> Callable[..., Any]:
    wrapped = original(update_state_fn)

    def decorated(metric_obj: Any, *args: Any, **kwargs: Any) -> Any:
        probe = gradient_probe.active()
        if probe is None:
            return wrapped(metric_obj, *args, **kwargs)
        is_scalar = bool(args) and getattr(args[0], "shape", None) == ()
        if is_scalar and isinstance(metric_obj, tf_keras.metrics.Mean):
            is_weighted = len(args) > 1 or kwargs.get("sample_weight") is not None
            (probe.weighted_means if is_weighted else probe.means).append((metric_obj, args[0]))
        return tf.no_op()

    return tf.__internal__.decorator.make_decorator(update_state_fn, decorated)


def add_weight(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    probe = gradient_probe.active()
    # `compiled_loss` and `compiled_metrics` make metrics in their first call, layers their weights.
    with contextlib.nullcontext() if probe is None else tf_private.made_in_scope(probe.strategy):
        return original(self, *args, **kwargs)


def result_wrapper(original: Callable[..., Any], result_fn: Callable[..., Any]) -> Callable[..., Any]:
    merged = original(result_fn)

    def decorated(metric_obj: Any, *args: Any) -> Any:
        if not _local_results.active:
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


def step_function(original: Callable[..., Any], self: Any, force: bool = False, *, kind: str) -> Any:
    if self._cluster_coordinator or tf_private.is_default(self.distribute_strategy):
        return original(self, force)
    if getattr(self, f"{kind}_function") is None or force:
        setattr(self, f"{kind}_function", _step_function(self, kind))
    return getattr(self, f"{kind}_function")


def _step_function(model: Any, kind: str) -> Callable[[Any], Any]:
    step, counter = getattr(model, f"{kind}_step"), getattr(model, f"_{kind}_counter")
    converted = build.converted(step)
    # There the replicas share a metric's variables; a padding example counts, as one example more.
    is_shared = is_central(model.distribute_strategy)

    shown, is_keras_step = own_logs.Results(model), code_names.is_keras(step)

    def local_step(batch: Any) -> Any:
        with tf_private.changed(_local_results, active=True):
            return converted(batch) if is_keras_step else shown.noted(converted(batch))

    return model_steps.make_step_function(
        model,
        local_step,
        is_training=kind == "train",
        shown=None if is_keras_step else shown,
        # tf_keras aggregates metrics when they are read.
        metric_variables=lambda: (
            [] if is_shared else [variable for one in model.metrics for variable in one.variables]
        ),
        finish=model._validate_and_get_metrics_result,
        build=functools.partial(build.build_ahead, model) if kind == "test" else lambda: None,
        check_graph=functools.partial(step_trace.check_trains, model),
        after_step=lambda: counter.assign_add(1),
    )


def packed_fit(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    recipes.refuse_in_keras(*args, *kwargs.values())
    is_stock = tf_private.is_default(self.distribute_strategy)
    if is_stock and not plain_fit.is_in_task():
        return original(self, *args, **kwargs)
    bound = inspect.signature(original).bind(self, *args, **kwargs)
    if is_parameter_server(self.distribute_strategy):
        coordinated.check_fit(bound.arguments)
    elif not is_stock:
        check_supported(self, self.distribute_strategy)
    session = plain_fit.session_of(self, bound.arguments, tf_keras.callbacks)
    with fit_session.entered(session):
        return original(*bound.args, **bound.kwargs)


def predict_function(original: Callable[..., Any], self: Any, force: bool = False) -> Any:
    is_made = self.predict_function is not None and not force
    if self._cluster_coordinator or is_made or tf_private.is_default(self.distribute_strategy):
        return original(self, force)
    predict = model_steps.make_predict_function(
        self, build.converted(self.predict_step), of_shards=training.reduce_per_replica
    )

    def predict_function(call: Any) -> Any:
        elements = [*call] if isinstance(call, step_calls.StepCall) else [next(call)]
        if not elements:
            raise StopIteration
        return predict(elements)

    self.predict_function = predict_function
    return predict_function


def in_own_scope(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    with scope_to_build(self, getattr(self, "_distribution_strategy", None)):
        return original(self, *args, **kwargs)


def load_initial_counters(
    original: Callable[..., Any], self: Any, steps_per_epoch: Any, initial_epoch: int
) -> Any:
    session = fit_session.current()
    if session is not None and session.first is not None:
        return session.first.epoch, session.first.step
    if not hasattr(self, "_training_state"):
        self._training_state = None  # BackupAndRestore of an earlier fit has deleted it
    return original(self, steps_per_epoch, initial_epoch)


def logs_of_epoch(original: Callable[..., Any], self: Any, logs: Any) -> Any:
    collective_calls.keep_totals(self)  # one collective in place of one for each variable that is read
    results = original(self, logs)
    is_stock = self._cluster_coordinator or tf_private.is_default(self.distribute_strategy)
    return results if is_stock else own_logs.of_epoch(self, logs, results)


def load_own_variables(original: Callable[..., None], self: Any, store: Any) -> None:
    # A file gives h5py's datasets, which tf.Variable takes, but TensorFlow cannot divide by the replicas.
    original(self, {name: np.asarray(store[name]) for name in store.keys()})
