"""Train functions that look up rows of tables in the ways that models do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.inside import forget_notes, notes_of

keras = tf.keras

NUM_ROWS, WIDTH = 12, 3


def tables_looked_up(
    ctx: Any,
    *,
    kinds: Sequence[str],
    is_eager: bool = False,
    accumulate: int = 1,
    clipnorm: float | None = None,
) -> dict[str, Any]:
    """Trains a model of tables, one looked up in each way, by Adam; returns the tables and the notes."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, NUM_ROWS, size=(12, 3)).astype("int64")
    features = np.where(rng.random((12, NUM_ROWS)) < 0.25, 1.0 + rng.random((12, NUM_ROWS)), 0.0)
    y = rng.normal(size=(12, WIDTH)).astype("float32")
    forget_notes(ctx)
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        inputs = keras.Input((3,), dtype="int64"), keras.Input((NUM_ROWS,), sparse=True)
        layers = {
            kind: keras.layers.Dense(WIDTH, kernel_initializer="zeros", use_bias=False)
            if kind == "sparse input"
            else _lookup_layer(keras, kind)
            for kind in kinds
        }
        outputs = [one(inputs[kind == "sparse input"]) for kind, one in layers.items()]
        model = keras.Model(inputs, keras.layers.Add()(outputs) if len(outputs) > 1 else outputs[0])
        # A large epsilon, or rounding decides where the gradient is nearly zero.
        optimizer = keras.optimizers.Adam(0.1, epsilon=1e-3, clipnorm=clipnorm)
        model.compile(optimizer, "mse", run_eagerly=is_eager)
    x = words, tf.sparse.from_dense(features.astype("float32"))
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    if accumulate > 1:
        ctx.fit(model, data, epochs=2, accumulate=accumulate)
    else:
        model.fit(data, epochs=2, verbose=0)
    tables = {kind: np.array(one.get_weights()[0]) for kind, one in layers.items()}
    return {**tables, "notes": notes_of(ctx)}


def _lookup_layer(keras: Any, kind: str) -> Any:
    class Lookup(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(NUM_ROWS, WIDTH), initializer="zeros", name="table")

        def call(self, words: Any) -> Any:
            flat = tf.reshape(words, [-1])
            unique, place = tf.unique(flat)
            each = tf.constant(0.0)
            if kind in ("safe lookup", "lookup of weighted ones", "lookup of tables"):
                return self._looked_up(words)
            if kind == "unique":
                each = tf.gather(tf.gather(self.table, unique), place)
            elif kind == "each":
                each = tf.gather(self.table, tf.gather(unique, place))
            elif kind == "hashed":
                each = tf.gather(tf.gather(self.table, unique % 5), place)
            elif kind == "below a row of zeros":
                below = tf.concat([tf.zeros([1, WIDTH]), tf.convert_to_tensor(self.table)], axis=0)
                each = tf.gather(tf.gather(below, unique), place)
            elif kind == "of a mask":
                there = tf.reduce_any(tf.one_hot(flat, NUM_ROWS, on_value=True, off_value=False), axis=0)
                rows = tf.where(there)[:, 0]
                dense = tf.scatter_nd(rows[:, None], tf.gather(self.table, rows), [NUM_ROWS, WIDTH])
                return tf.reduce_sum(tf.gather(dense, words), axis=1)
            elif kind == "all at once":
                position = tf.gather(self.table, tf.range(3) + 2)
                others = tf.gather(self.table, tf.range(tf.shape(words)[1]))
                each = tf.gather(tf.gather(self.table, unique), place) + tf.gather(self.table, flat)
                weights = tf.cast(words + 1, tf.float32)
                each += tf.reshape((position + others) * weights[:, :, None], [-1, WIDTH])
            return tf.reduce_sum(tf.reshape(each, [-1, 3, WIDTH]), axis=1)

        def _looked_up(self, words: Any) -> Any:
            rows = tf.RaggedTensor.from_tensor(words).to_sparse()
            table = tf.convert_to_tensor(self.table)
            if kind == "safe lookup":
                return tf.nn.safe_embedding_lookup_sparse(table, rows, combiner="mean")
            if kind == "lookup of tables":
                halves = [table[: NUM_ROWS // 2], table[NUM_ROWS // 2 :]]
                return tf.nn.embedding_lookup_sparse(halves, rows, None, combiner="sum")
            weights = tf.SparseTensor(
                rows.indices, 1.0 + tf.cast(rows.values % 3, tf.float32), rows.dense_shape
            )
            return tf.nn.embedding_lookup_sparse(table, rows, weights, combiner="sum")

        def compute_output_shape(self, shape: Any) -> Any:
            return (shape[0], WIDTH)

    return Lookup()
