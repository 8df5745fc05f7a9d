"""A custom loop for a TPU, which falls back to the devices that are there.

raydist submit jobs/tpu.py --strategy tpu
raydist submit jobs/tpu.py
raydist submit jobs/tpu.py --strategy mirrored --devices 2

Its parts that need a TPU follow TensorFlow's guide and were not run on that hardware; the rest runs anywhere.
A TPU wants shapes that are known beforehand, and many steps in each call from the host.
"""

from __future__ import annotations

import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(
    params={"steps": 100, "steps_per_call": 20, "batch_size": 128, "learning_rate": 1e-2, "data_dir": ""}
)
def train(ctx: raydist.TrainContext):
    params, batch_size = ctx.params, ctx.params["batch_size"]
    strategy, is_tpu = start(ctx)
    ctx.note(f"tpu: {strategy.num_replicas_in_sync} replicas of {type(strategy).__name__}")
    (train_x, train_y), (test_x, test_y) = load_images(ctx)
    # Batches of one size, because each new shape is compiled anew; endless, so that no step has to ask.
    data = tf.data.Dataset.from_tensor_slices((train_x, train_y)).cache().shuffle(len(train_y), seed=1)
    data = data.repeat().batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    iterator = iter(strategy.experimental_distribute_dataset(data))

    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input(train_x.shape[1:]),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(64, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        optimizer = tf.keras.optimizers.Adam(params["learning_rate"])
        optimizer.build(model.trainable_variables)

    def step_fn(images, labels):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_steps(iterator, count):
        """Runs `count` steps in one call: the host is asked once, and the TPU never waits for Python."""
        loss = tf.constant(0.0)
        for _ in tf.range(count):  # a loop of the graph, because `count` is a tensor
            replica_losses = strategy.run(step_fn, args=next(iterator))
            loss = strategy.reduce(tf.distribute.ReduceOp.SUM, replica_losses, axis=None)
        return loss

    calls = 0
    for step in range(0, params["steps"], params["steps_per_call"]):
        count = min(params["steps_per_call"], params["steps"] - step)
        loss = train_steps(iterator, tf.constant(count))
        calls += 1
        ctx.report({"loss": loss}, step=step + count)

    predicted = tf.argmax(model(test_x), axis=1).numpy()
    ctx.report(
        {
            "is_tpu": is_tpu,
            "num_replicas": strategy.num_replicas_in_sync,
            "calls": calls,
            "updates": optimizer.iterations,
            "test_accuracy": (predicted == test_y).mean(),
        },
        step=params["steps"],
    )


def start(ctx):
    """Returns the strategy to train under, and whether that is a TPU's."""
    if isinstance(ctx.strategy, tf.distribute.TPUStrategy):
        return ctx.strategy, True  # raydist has done what follows
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver()  # by TPU_NAME, or the one of Colab
    except ValueError as error:
        print(f"no TPU ({error}), so the strategy is {type(ctx.strategy).__name__}")
        return ctx.strategy, False
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)  # loses what the TPU's memory held
    return tf.distribute.TPUStrategy(resolver), True
