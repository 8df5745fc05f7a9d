"""Steps that are rehearsed on batches of several kinds of tensors, or that cannot be rehearsed."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

SIZE = 5


def errors(ctx: Any) -> dict[str, list[float]]:
    """Returns the errors of a step with a mean loss, by the kind of its inputs and the rows of a batch."""
    import tensorflow as tf

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
            check = StepCheck(step, batch, strategy=ctx.strategy)
            check.measure()
            found[f"{kind}, {rows} rows"] = check.errors
    return found


def evaluated_sums(ctx: Any) -> dict[str, Any]:
    """Returns what `evaluate` shows of a test step with a loss that is a sum, here and on one device."""
    import tensorflow as tf

    keras = tf.keras

    class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
        def test_step(self, data: Any) -> Any:
            x, y = data
            self.compiled_loss(y, self(x, training=False))
            return {metric.name: metric.result() for metric in self.metrics}

    x, y = (np.linspace(-1.0, 1.0, 16 * width, dtype="float32").reshape(16, width) for width in (3, 1))
    shown = {}
    for name, scope in (("found", ctx.strategy.scope()), ("right", contextlib.nullcontext())):
        with scope:
            inputs = keras.Input((3,))
            model = OwnStep(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
            model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
        shown[name] = model.evaluate(x, y, batch_size=8, verbose=0, return_dict=True)["loss"]
    return shown


def made_in_a_step_that_cannot_be_rehearsed(ctx: Any) -> dict[str, Any]:
    """Returns weights after a step makes a variable, here and on one device.

    It asks for a number of rows that a rehearsal does not know.
    """
    import tensorflow as tf

    keras = tf.keras

    class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
        count: Any = None

        def train_step(self, data: Any) -> Any:
            x, y = data
            zeros = tf.constant(np.zeros([x.shape[0], 1], "float32"))
            if self.count is None:
                self.count = tf.Variable(
                    1.0, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
                )
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True) - zeros)) * self.count
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss}

    x, y = (np.linspace(-1.0, 1.0, 32 * width, dtype="float32").reshape(32, width) for width in (3, 1))
    found = {}
    for name, scope in (("found", ctx.strategy.scope()), ("right", contextlib.nullcontext())):
        with scope:
            inputs = keras.Input((3,))
            model = OwnStep(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
            model.compile(keras.optimizers.SGD(0.1))
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True)
        model.fit(data, epochs=2, verbose=0)
        found[name] = model.layers[-1].get_weights()[0]
    return found
