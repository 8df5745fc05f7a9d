"""The global batch, the batch of each replica, and the learning rate that fits: scaled, with a warm-up.

raydist submit jobs/batch_size.py --workers 2
raydist submit jobs/batch_size.py --strategy mirrored --devices 4
raydist metrics RUN

More replicas at the same batch each make a larger global batch, and so fewer updates in an epoch. The job
trains the same epochs three times: with the batch that the learning rate was found for, with the larger one
at the same rate, and with the larger one at the rate that is scaled with it.
"""

from __future__ import annotations

import tensorflow as tf
from mnist_images import load_images

import raydist


@raydist.job(
    workers=2,
    params={
        "epochs": 4,
        "batch_size_per_replica": 64,
        "base_batch_size": 16,
        "base_learning_rate": 0.05,
        "warmup_steps": 10,
        "data_dir": "",
    },
)
def train(ctx: raydist.TrainContext):
    params = ctx.params
    train_set, test_set = load_images(ctx)
    base_batch_size, base_rate = params["base_batch_size"], params["base_learning_rate"]
    batch_size = ctx.global_batch_size(params["batch_size_per_replica"])  # times the number of replicas
    results = {"batch_size/global": batch_size, "batch_size/of_a_replica": params["batch_size_per_replica"]}
    scaled_rate = ctx.scale_learning_rate(
        base_rate,
        base_batch_size=base_batch_size,
        batch_size=batch_size,
        warmup_steps=params["warmup_steps"],  # begins at the base rate: a large one diverges at first
    )
    for name, size, rate in (
        ("base", base_batch_size, base_rate),
        ("same_rate", batch_size, base_rate),
        ("scaled_rate", batch_size, scaled_rate),
    ):
        results |= fit_with(ctx, name, train_set, test_set, batch_size=size, learning_rate=rate)
    ctx.report(results)


def fit_with(ctx, name, train_set, test_set, *, batch_size, learning_rate):
    tf.keras.utils.set_random_seed(1)  # each begins with the same weights
    with ctx.strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input(train_set[0].shape[1:]), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]
        )
        model.compile(
            optimizer=tf.keras.optimizers.SGD(learning_rate),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )

    class ReportRate(tf.keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            ctx.report({f"{name}/learning_rate": tf.convert_to_tensor(self.model.optimizer.learning_rate)})

    data = raydist.data.from_arrays(*train_set).batches(global_batch_size=batch_size, seed=1)
    ctx.fit(model, data, epochs=ctx.params["epochs"], callbacks=[ReportRate()])
    test_loss = ctx.evaluate(model, test_set)["loss"]
    return {f"{name}/updates": model.optimizer.iterations, f"{name}/test_loss": test_loss}
