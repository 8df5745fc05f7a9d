"""The same model trained synchronously and asynchronously: steps per second, loss, staleness.

raydist submit jobs/sync_vs_async.py --workers 2 --name sync
raydist submit jobs/sync_vs_async.py --strategy parameter_server --workers 2 --ps 1 --name async
python jobs/sync_vs_async.py

The last command runs both, one after the other, and prints them side by side.

A step takes one global batch. Under multi_worker_mirrored the workers share it, and wait for each other.
Under parameter_server a worker takes it alone, and waits for nobody: meanwhile other workers have changed the
weights that its gradient is for. How many times they have is the gradient's staleness.
"""

from __future__ import annotations

import time

import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(workers=2, params={"steps": 400, "batch_size": 64, "learning_rate": 0.05, "data_dir": ""})
def train(ctx: raydist.TrainContext):
    params, batch_size = ctx.params, ctx.params["batch_size"]
    (train_x, train_y), (test_x, test_y) = load_images(ctx)

    def make_dataset():  # under parameter_server each worker makes its own
        data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).shuffle(len(train_y), seed=1)
        return data.batch(batch_size, drop_remainder=True)

    with ctx.strategy.scope():
        model = build_model(train_x.shape[1:])
        optimizer = tf.keras.optimizers.SGD(params["learning_rate"])
        optimizer.build(model.trainable_variables)
        # Not optimizer.iterations: Keras 3 assigns it, where tf.Variable.assign_add is one atomic operation.
        num_updates = new_counter()
        total_staleness = new_counter()
        clock_started_s = tf.Variable(
            0.0, dtype=tf.float64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def step_fn(batch):
        images, labels = batch
        updates_before = num_updates.read_value()
        with tf.control_dependencies([updates_before]):  # the weights are read after the counter
            with tf.GradientTape() as tape:
                logits = model(images, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
        with tf.control_dependencies(gradients):  # and the counter again when they are to be applied
            staleness = num_updates.read_value() - updates_before
            is_second = (updates_before > 0) & (clock_started_s == 0)
            clock_started_s.assign(tf.where(is_second, tf.timestamp(), clock_started_s))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        num_updates.assign_add(1)
        total_staleness.assign_add(staleness)
        return {"loss": tf.reduce_mean(losses), "staleness": staleness}

    ctx.train_steps(step_fn, make_dataset, num_steps=params["steps"])
    # From the second step on: before the first one the function is traced.
    steps_per_s = (num_updates.numpy() - 2) / (time.time() - clock_started_s.numpy())
    test_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=test_y, logits=model(test_x))
    ctx.report(
        {
            "steps_per_second": steps_per_s,
            "examples_per_second": steps_per_s * batch_size,
            "test_loss": tf.reduce_mean(test_losses),
            "updates": num_updates.numpy(),
            "mean_staleness": total_staleness.numpy() / num_updates.numpy(),
        }
    )


def new_counter():
    # All replicas count the same, so one of them is enough.
    return tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def build_model(shape):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input(shape), layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)]
    )


if __name__ == "__main__":
    both = {
        "sync": raydist.run(__file__, workers=2),
        "async": raydist.run(__file__, strategy="parameter_server", workers=2, ps=1),
    }
    for metric in ("steps_per_second", "examples_per_second", "test_loss", "updates", "mean_staleness"):
        print(f"{metric:20}", *(f"{name} {result.metrics[metric]:10.4g}" for name, result in both.items()))
