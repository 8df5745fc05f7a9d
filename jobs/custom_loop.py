"""A training loop written by hand, with nothing but tf.distribute: `strategy.run` and `strategy.reduce`.

raydist submit jobs/custom_loop.py
raydist submit jobs/custom_loop.py --strategy mirrored --devices 2

digits.py trains by `ctx.train_steps`, which runs such a loop for you and is faster: it packs several steps
into one call. This job shows what is inside.
"""

from __future__ import annotations

import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(workers=2, params={"epochs": 5, "batch_size": 128, "learning_rate": 1e-3, "data_dir": ""})
def train(ctx: raydist.TrainContext):
    strategy, batch_size = ctx.strategy, ctx.params["batch_size"]
    (train_x, train_y), test_set = load_images(ctx)
    # Each worker runs the whole pipeline and keeps its part of each batch; the replicas share that.
    test_data = strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(test_set).batch(batch_size)
    )

    def make_epoch(epoch):
        data = tf.data.Dataset.from_tensor_slices((train_x, train_y))
        # The epoch is the seed: a resumed run continues with the order that it would have had.
        return strategy.experimental_distribute_dataset(
            data.shuffle(len(train_y), seed=epoch).batch(batch_size)
        )

    with strategy.scope():  # everything that has variables
        model = build_model(train_x.shape[1:])
        optimizer = tf.keras.optimizers.Adam(ctx.params["learning_rate"])
        optimizer.build(model.trainable_variables)
        accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
        test_loss = tf.keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
        test_accuracy = tf.keras.metrics.SparseCategoricalAccuracy()

    def train_step(images, labels):
        """Runs on each replica, on its part of the global batch."""
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            # One loss per example, divided by the *global* batch size: apply_gradients adds up the
            # gradients of the replicas, and the sum is the gradient of the global batch's mean.
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
        return loss

    def test_step(images, labels):
        logits = model(images, training=False)
        test_loss.update_state(labels, logits)
        test_accuracy.update_state(labels, logits)

    @tf.function
    def distributed_train_step(batch):
        replica_losses = strategy.run(train_step, args=batch)
        return strategy.reduce(tf.distribute.ReduceOp.SUM, replica_losses, axis=None)

    @tf.function
    def distributed_test_step(batch):
        strategy.run(test_step, args=batch)

    steps_per_epoch = -(-len(train_y) // batch_size)
    first_step = ctx.restore(model=model, optimizer=optimizer) or 0
    for epoch in range(first_step // steps_per_epoch, ctx.params["epochs"]):
        total_loss = 0.0
        for batch in make_epoch(epoch):
            total_loss += distributed_train_step(batch)
        for batch in test_data:
            distributed_test_step(batch)
        # result() adds up what each replica has counted, so every worker calls it.
        results = {
            "loss": total_loss * batch_size / len(train_y),  # the last batch is smaller
            "accuracy": accuracy.result(),
            "test_loss": test_loss.result(),
            "test_accuracy": test_accuracy.result(),
        }
        step = (epoch + 1) * steps_per_epoch
        ctx.report(results, step=step)
        ctx.save(step=step, model=model, optimizer=optimizer)
        for metric in (accuracy, test_loss, test_accuracy):
            metric.reset_state()


def build_model(shape):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input(shape), layers.Flatten(), layers.Dense(64, activation="relu"), layers.Dense(10)]
    )
