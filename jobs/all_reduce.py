"""What an all-reduce does: each replica has a gradient of its own before it, and all have the same one after.

raydist submit jobs/all_reduce.py
raydist submit jobs/all_reduce.py --strategy mirrored --devices 4

The sum over the replicas equals the gradient that one device computes on the whole batch.
"""

from __future__ import annotations

import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(workers=2, params={"steps": 5, "batch_size": 96, "learning_rate": 0.5, "data_dir": ""})
def train(ctx: raydist.TrainContext):
    strategy, batch_size = ctx.strategy, ctx.params["batch_size"]
    (images, labels), _ = load_images(ctx)
    data = tf.data.Dataset.from_tensor_slices((images.reshape(len(images), -1), labels))
    data = data.batch(batch_size, drop_remainder=True).repeat().take(ctx.params["steps"])

    with strategy.scope():  # softmax regression, so that there is one gradient to look at
        weights = tf.Variable(tf.zeros([images[0].size, 10]), aggregation=tf.VariableAggregation.MEAN)

    def gradient_of(values, x, y):
        """Returns the gradient of the loss that is averaged over the global batch, whatever part `x` is."""
        with tf.GradientTape() as tape:
            tape.watch(values)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=x @ values)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
        return tape.gradient(loss, values)

    def train_step(x, y):
        own = gradient_of(weights.read_value(), x, y)
        replica_context = tf.distribute.get_replica_context()
        # Waits for all replicas and returns the same sum to each: a ring over the workers, or NCCL on GPUs.
        reduced = replica_context.all_reduce(tf.distribute.ReduceOp.SUM, own)
        weights.assign_sub(ctx.params["learning_rate"] * reduced)
        return own[tf.newaxis], reduced[tf.newaxis]

    @tf.function
    def distributed_train_step(batch):
        own, reduced = strategy.run(train_step, args=batch)
        # Of all replicas, those of other workers too: [num_replicas, num_pixels, 10].
        return strategy.gather(own, axis=0), strategy.gather(reduced, axis=0)

    @tf.function
    def copies_of_weights():
        return strategy.gather(strategy.run(lambda: weights.read_value()[tf.newaxis]), axis=0)

    batches = zip(data, strategy.experimental_distribute_dataset(data), strict=True)
    for step, ((x, y), distributed_batch) in enumerate(batches, start=1):
        of_one_device = gradient_of(
            tf.convert_to_tensor(weights), x, y
        )  # before the step changes the weights
        own, reduced = distributed_train_step(distributed_batch)
        ctx.report(
            {
                "own_gradients_differ_by": spread(own),
                "reduced_gradients_differ_by": spread(reduced),
                "sum_minus_one_device": tf.reduce_max(tf.abs(tf.reduce_sum(own, axis=0) - of_one_device)),
                "reduced_minus_one_device": tf.reduce_max(tf.abs(reduced[0] - of_one_device)),
                "gradient_size": tf.reduce_max(tf.abs(of_one_device)),
                "weights_differ_by": spread(copies_of_weights()),
            },
            step=step,
        )


def spread(values):
    """Returns by how much any entry of `values` differs over the first axis."""
    return tf.reduce_max(tf.reduce_max(values, axis=0) - tf.reduce_min(values, axis=0))
