"""Reads variables in every way in which Python, NumPy and TensorFlow can."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

keras = tf.keras

READS: dict[str, Callable[[Any], Any]] = {
    **{kind.__name__: kind for kind in (int, float, complex, repr, abs, round, len, list, np.float32)},
    **{one.__name__: one for one in (math.floor, math.sqrt, math.isnan, operator.index, operator.neg)},
    **{one.__name__: one for one in (np.asarray, np.array, np.mean, np.isfinite)},
    "%d": lambda v: "%d" % v,  # noqa: UP031
    "%.3f": lambda v: "%.3f" % v,  # noqa: UP031
    "f-string": lambda v: f"{v}",
    "format": lambda v: f"{v:.2f}",
    "asarray as float64": lambda v: np.asarray(v, dtype="float64"),
    "__array__": lambda v: v.__array__(),
    "__array__ as float64": lambda v: v.__array__("float64"),
    "numpy": lambda v: v.numpy(),
    "array of two": lambda v: np.array([v, v]),
    "stacked": lambda v: np.stack([v, v]),
    "allclose": lambda v: np.allclose(v, v),
    "array + v": lambda v: np.ones(v.shape, "float32") + v,
    "[0]": lambda v: v[0],
    "[...]": lambda v: v[...],
    "[:1]": lambda v: v[:1],
    "[0, 1]": lambda v: v[0, 1],
    "1 in v": lambda v: 1 in v,
    "range": lambda v: list(range(v)),
    "index of a list": lambda v: [5, 6, 7, 8][v],
    "isclose": lambda v: math.isclose(v, 3),
    "divmod": lambda v: divmod(v, 2),
    "max": lambda v: float(max(v, 2)),
    "sorted": lambda v: [float(one) for one in sorted([v, 1])],
    "sum": lambda v: sum([v, v]),
    "+v": operator.pos,
    "~v": operator.invert,
    "shape": lambda v: tuple(v.shape),
}
for _operator in (operator.add, operator.mul, operator.truediv, operator.floordiv, operator.mod):
    READS[f"v {_operator.__name__} 2"] = lambda v, apply=_operator: apply(v, 2)
    READS[f"2 {_operator.__name__} v"] = lambda v, apply=_operator: apply(2, v)
for _operator in (operator.pow, operator.matmul, operator.eq, operator.ne, operator.lt, operator.ge):
    READS[f"v {_operator.__name__} v"] = lambda v, apply=_operator: apply(v, v)


def read_all(ctx: Any) -> dict[str, Any]:
    """Returns, by variable, read and place, what comes of it as text."""
    strategy = ctx.strategy
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, kernel_initializer="ones")])
        optimizer = keras.optimizers.Adam(0.5)
        optimizer.build(model.trainable_variables)
        optimizer.iterations.assign(3)
        mean = keras.metrics.Mean()
        of_tensorflow = tf.Variable(0)
    strategy.run(lambda: mean.update_state(3.0 / strategy.num_replicas_in_sync))
    variables = {
        "iterations": optimizer.iterations,
        "rate": optimizer._learning_rate,
        "kernel": model.layers[0].kernel,
        "bias": model.layers[0].bias,
        # The sum over replicas, which each replica has a part of.
        "total": mean.variables[0],
        "variable": of_tensorflow,
    }
    found = {}
    for name, variable in variables.items():
        for title, read in READS.items():
            if name == "total" and title in ("repr", "f-string"):
                continue  # which leaves the sum out on several workers, see prints_alone
            found[f"{name} {title} outside"] = _outcome(read, variable)
            with strategy.scope():
                found[f"{name} {title} in the scope"] = _outcome(read, variable)
            if name != "total":
                found[f"{name} {title} in a replica"] = _in_replica(strategy, read, variable)
    return found


def prints_alone(ctx: Any) -> dict[str, Any]:
    """The chief alone prints a metric's variable, which belongs to all workers."""
    with ctx.strategy.scope():
        mean = tf.keras.metrics.Mean()
    return {"printed": repr(mean.variables[0]).partition(" path=")[0] if ctx.is_chief else ""}


def _in_replica(strategy: Any, read: Callable[[Any], Any], variable: Any) -> str:
    outcomes: list[str] = []
    strategy.run(lambda: outcomes.append(_outcome(read, variable)))
    assert len(set(outcomes)) == 1, outcomes
    return outcomes[0]


def _outcome(read: Callable[[Any], Any], variable: Any) -> str:
    try:
        value = read(variable)
    except Exception as error:
        return type(error).__name__
    if isinstance(value, str):
        # The rest names the variable, and for those of TensorFlow what each replica has.
        return "text" if "tf.Variable" in value else value.partition("value=")[2] or value
    if hasattr(value, "numpy"):
        return f"tensor {np.asarray(value.numpy()).tolist()}"
    return f"{type(value).__name__} {np.asarray(value).tolist()}"
