"""tf_keras's metrics inside of a step: a replica's own results, and none where a step is only probed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras

from raydist.training.replicas import gradient_probe


class _LocalResults(threading.local):
    """Whether `metric.result()` means this replica's own value, in the thread that traces a step."""

    active = False


_local_results = _LocalResults()


class local_metric_results:
    def __enter__(self) -> None:
        _local_results.active = True

    def __exit__(self, *exc_info: object) -> None:
        _local_results.active = False


def make_update_state_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def update_state_wrapper(update_state_fn: Callable[..., Any]) -> Callable[..., Any]:
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

    return update_state_wrapper


def make_result_wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def result_wrapper(result_fn: Callable[..., Any]) -> Callable[..., Any]:
        merged = original(result_fn)

        def decorated(metric_obj: Any, *args: Any) -> Any:
            if not _local_results.active:
                return merged(metric_obj, *args)
            result = tf.nest.map_structure(tf.identity, result_fn(*args))
            metric_obj._call_result = result
            return result

        return tf.__internal__.decorator.make_decorator(result_fn, decorated)

    return result_wrapper
