"""How long this task waits in collectives, for slower tasks and for the network.

Each collective is measured from the moment that its input is there to the moment that its result is. Nothing
that training computes depends on it: two clock readings hang on the input and on the result, and their
difference is added to a variable of the device.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from raydist import tf_private
from raydist.training.cluster.collectives import is_alone

# By device the seconds waited, and when the last collective ended; empty where nothing is measured. Of the
# process, as the hooks in TensorFlow that read it are: they run in the threads of replicas too, which have no
# ContextVar of the main thread, and traced functions outlive the `fit` that traced them.
_totals: dict[str, tf.Variable] = {}
# Also those of earlier strategies: functions that were traced with them hold them weakly.
_kept: list[tf.Variable] = []


def start(strategy: tf.distribute.Strategy) -> None:
    """Measures what is traced from now on, where a strategy has collectives with other tasks.

    Not on GPUs: an operation on the CPU that follows one on a GPU runs when that is queued, not when it is
    done, so that the time would have a part of the task's own computation.
    """
    devices = () if is_alone(strategy) else tuple(strategy.extended.worker_devices)
    _totals.clear()
    if not devices or any(":CPU:" not in device for device in devices):
        return
    tf_private.Timestamps.begin()
    for device in devices:
        with tf.init_scope(), tf.device(device):  # outside of every strategy
            _totals[device] = tf.Variable(
                [0.0, 0.0], dtype=tf.float64, trainable=False, name="raydist_collective_clock"
            )
    _kept.extend(_totals.values())
    tf_private.observe_collectives(_begin, _end)


def owns(variable: Any) -> bool:
    """Whether a variable is a clock's: each worker's has other values, and no checkpoint needs them."""
    return any(variable is one for one in _kept)


def waited_s() -> float | None:
    """Returns the seconds that this task has waited in collectives; None where that is not measured.

    Of several devices those of the one that waits least: the others wait for that one, too.
    """
    if not _totals or tf_private.is_op_determinism_enabled():
        return None
    return min(float(one.numpy()[0]) for one in _totals.values())


def _begin(tensor: Any, device: str) -> tf.Tensor | None:
    """Returns when a collective's input is there; None where the collective is not measured.

    `tf.timestamp` has no deterministic implementation, nor one for XLA.
    """
    if device not in _totals or tf_private.is_op_determinism_enabled() or tf_private.is_in_xla():
        return None
    with tf.device(device), tf.control_dependencies([tensor] if tf.is_tensor(tensor) else []):
        return tf_private.Timestamps.now()


def _end(began_at_s: tf.Tensor | None, result: tf.Tensor, device: str) -> None:
    """Adds the time since `began_at_s`, once `result` is there."""
    if began_at_s is None:
        return
    totals = _totals[device]
    with tf.device(device), tf.control_dependencies([result]):
        ended_at_s = tf_private.Timestamps.now()
        # Several may wait at the same time, as those of a sparse gradient do: that counts once.
        waited_s, last_ended_at_s = tf.unstack(totals.read_value(), num=2)
        waiting_s = ended_at_s - tf.maximum(began_at_s, last_ended_at_s)
        waited_s += tf.maximum(waiting_s, tf.zeros_like(waiting_s))
        totals.assign(tf.stack([waited_s, tf.maximum(ended_at_s, last_ended_at_s)]))
