"""What rehearsals find of steps on batches of several kinds of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

SIZE = 5


def errors(ctx: Any) -> dict[str, list[float]]:
    """Returns the errors of a step with a mean loss, by the kind of its inputs and the rows of a batch."""
    import tensorflow as tf

    from raydist.training.replicas import slices
    from raydist.training.replicas.step_check import StepCheck

    rng = np.random.default_rng(0)
    with ctx.strategy.scope():
        dense = tf.keras.layers.Dense(1, kernel_initializer="ones")
        dense.build((None, SIZE))
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.build(dense.trainable_variables)

    def step(batch: Any) -> None:
        x, y = batch
        if isinstance(x, tf.RaggedTensor):
            x = x.to_tensor(shape=[None, SIZE]) + tf.reduce_mean(x, axis=1)[:, None]
        elif isinstance(x, tf.SparseTensor):
            x = tf.sparse.to_dense(x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - dense(tf.ensure_shape(x, [None, SIZE]))))
        weights = dense.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    found = {}
    for rows in (16, 17):
        values = rng.normal(size=(rows, SIZE)).astype("float32")
        lengths = [1 + row % SIZE for row in range(rows)]
        inputs = {
            "dense": tf.constant(values),
            "ragged": tf.RaggedTensor.from_tensor(values, lengths=lengths),
            "sparse": tf.sparse.from_dense(np.where(values > 0, values, 0)),
        }
        for kind, x in inputs.items():
            batch = x, tf.constant(rng.normal(size=(rows, 1)).astype("float32"))
            spec = tf.nest.map_structure(slices.relaxed_spec, batch)
            check = StepCheck(step, strategy=ctx.strategy, spec=spec)
            check.measure(batch)
            found[f"{kind}, {rows} rows"] = check.errors
    return found
