"""Handwritten digits with a custom training loop, under any strategy.

raydist submit jobs/digits.py
raydist submit jobs/digits.py --strategy mirrored --devices 2
"""

from __future__ import annotations

import tensorflow as tf
from sklearn.datasets import load_digits

import raydist


@raydist.job(workers=2, params={"epochs": 10, "batch_size": 96, "learning_rate": 5e-3, "steps_per_call": 10})
def train(ctx: raydist.TrainContext):
    params = ctx.params
    images, labels = load_data()
    num_test = len(labels) // 6
    train_x, train_y = images[num_test:], labels[num_test:]
    batch_size = params["batch_size"]
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_y), seed=1)
    data = data.batch(batch_size, drop_remainder=True)

    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((64,)),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        optimizer = tf.keras.optimizers.Adam(params["learning_rate"])
        optimizer.build(model.trainable_variables)

    def step_fn(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
            # Gradients are summed over replicas, so the loss divides by the global batch size.
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        is_right = tf.equal(tf.argmax(logits, axis=1), y)
        return {"loss": tf.reduce_mean(losses), "accuracy": tf.reduce_mean(tf.cast(is_right, tf.float32))}

    ctx.restore(model=model, optimizer=optimizer)  # what train_steps also saves
    num_steps = params["epochs"] * (len(train_y) // batch_size)
    metrics = ctx.train_steps(step_fn, data, num_steps=num_steps, steps_per_call=params["steps_per_call"])

    predicted = tf.argmax(model(images[:num_test]), axis=1).numpy()
    ctx.report({**metrics, "test_accuracy": float((predicted == labels[:num_test]).mean())}, step=num_steps)


def load_data():
    """Returns pixels `[n, 64]` in 0..1 and labels `[n]`."""
    digits = load_digits()
    return (digits.data / 16.0).astype("float32"), digits.target.astype("int64")
