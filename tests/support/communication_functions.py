"""Train functions that show how gradients are reduced."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np

from tests.support.inside import notes_of
from tests.support.late import LateModule
from tests.support.train_functions import bare_step, dense_model, examples, made

tf = LateModule("tensorflow")

HALF, FLOAT, BFLOAT16 = 19, 1, 14  # as DT_HALF, DT_FLOAT and DT_BFLOAT16 of TensorFlow's types.proto


def nodes(op: str) -> list[dict[str, Any]]:
    """Returns the nodes of one op in all functions that were traced in this process."""
    from tensorflow.python.eager import context

    current, definitions = context.context(), []
    for name in current.list_function_names():
        with contextlib.suppress(tf.errors.NotFoundError):  # another thread has dropped it meanwhile
            definitions.append(current.get_function_def(name))
    return [
        {
            "function": one.signature.name,
            "hint": node.attr["communication_hint"].s.decode(),
            "timeout": node.attr["timeout_seconds"].f,
            "type": node.attr["T"].type,
            "device": node.device.rpartition("/")[2],
            "name": node.name,
        }
        for one in definitions
        for node in one.node_def
        # TensorFlow wraps what runs outside of a graph in functions of its own.
        if node.op == op and not one.signature.name.startswith("__wrapped__")
    ]


class Watch:
    """Tells the nodes of an op that were traced since it was asked the last time."""

    def __init__(self, op: str) -> None:
        self._op = op
        self._known = {one["function"] for one in nodes(op)}

    def new(self) -> list[dict[str, Any]]:
        found = [one for one in nodes(self._op) if one["function"] not in self._known]
        self._known |= {one["function"] for one in found}
        return found


def _data(count: int = 64, batch_size: int = 32) -> Any:
    return tf.data.Dataset.from_tensor_slices(examples(count)).batch(batch_size, drop_remainder=True)


def every_way(ctx: Any) -> dict[str, Any]:
    """Trains by fit, by train_steps and bare; returns the collectives and sums that each traced."""
    collectives, sums = Watch("CollectiveReduceV2"), Watch("AddN")
    result: dict[str, Any] = {}
    model = made(ctx, "sgd")
    ctx.fit(model, _data(), epochs=2, steps_per_epoch=2)
    result["fit"], result["fit sums"] = collectives.new(), sums.new()
    with ctx.strategy.scope():
        other = dense_model(tf.keras, "sgd")
        other.optimizer.build(other.trainable_variables)

    ctx.train_steps(bare_step(other, global_batch_size=32), _data(), num_steps=4)
    result["train_steps"] = collectives.new()

    def reduce(value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value + 0.0)

    bare = tf.function(lambda: ctx.strategy.run(reduce, args=(tf.constant(1.0),)))
    bare()
    result["bare"] = collectives.new()
    weights = (*model.get_weights(), *other.get_weights())
    result["weights"] = np.concatenate([np.ravel(one) for one in weights])
    result["notes"] = notes_of(ctx)
    return result


def constant_gradients(ctx: Any, *, scale: float) -> dict[str, Any]:
    """Trains a loss that is linear in the weights, so that each gradient is known beforehand.

    A dense weight `[6]` gets the sums of the features, of very unlike sizes; a table `[5, 2]` gets a sparse
    gradient. SGD at rate 1 for 3 steps of 8 examples.
    """
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(24, 6)) * np.array([1e-9, 1e-6, 1e-3, 1.0, 1e2, 1e4]) * scale).astype("float32")
    ids = rng.integers(0, 5, size=(24, 1)).astype("int64")
    keras = tf.keras

    def linear(y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(y_pred, axis=-1) + 0.0 * tf.reduce_sum(y_true, axis=-1)

    with ctx.strategy.scope():
        features, rows = keras.Input((6,)), keras.Input((1,), dtype="int64")
        dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(features)
        table = keras.layers.Embedding(5, 2, embeddings_initializer="zeros")(rows)
        looked_up = keras.layers.Flatten()(table)
        weighted = keras.layers.Dot(1)([looked_up, keras.layers.Lambda(lambda one: one[:, 3:5])(features)])
        model = keras.Model([features, rows], keras.layers.Concatenate()([dense, weighted]))
        model.compile(optimizer=keras.optimizers.SGD(1.0), loss=linear)
    collectives = Watch("CollectiveReduceV2")
    labels = np.zeros((24, 1), "float32")
    ctx.fit(model, tf.data.Dataset.from_tensor_slices(((x, ids), labels)).batch(8), epochs=1)
    one, other = (weight for weight in model.get_weights())
    dense_weight, table_weight = (one, other) if one.shape == (6, 1) else (other, one)
    return {
        "dense": dense_weight,
        "table": table_weight,
        "x": x,
        "ids": ids,
        "collectives": [(one["function"], one["type"]) for one in collectives.new()],
        "notes": notes_of(ctx),
    }


def late(ctx: Any, *, seconds: float) -> dict[str, Any]:
    """The last worker comes too late to a collective; returns what each is told, and when."""

    def reduce(value: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, value + 0.0)

    reduced = tf.function(lambda value: ctx.strategy.run(reduce, args=(value,)))
    reduced(tf.constant(1.0))  # which all join
    if ctx.task.index == ctx.num_workers - 1:
        time.sleep(seconds)
    began_at_s = time.monotonic()
    try:
        reduced(tf.constant(1.0))
    except tf.errors.OpError as error:
        return {"error": error.message, "seconds": time.monotonic() - began_at_s}
    return {"error": "", "seconds": 0.0}
