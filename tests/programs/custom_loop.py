"""TensorFlow's guide "Custom training with tf.distribute.Strategy", bare, with a checkpoint per epoch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

BATCH_SIZE_PER_REPLICA = 5
GLOBAL_BATCH_SIZE = BATCH_SIZE_PER_REPLICA * 6  # of 1, 2 or 3 replicas; the guide multiplies by theirs
EPOCHS = 3


def create_model() -> Any:
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-4)),
            layers.Dense(3),
        ]
    )


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(20)
    rng = np.random.default_rng(20)
    x = rng.normal(size=(90, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(axis=1)
    strategy = ctx.strategy
    train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)
    train_dist_dataset = strategy.experimental_distribute_dataset(train_dataset)
    with strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

        def compute_loss(labels: Any, predictions: Any, model_losses: Any) -> Any:
            per_example_loss = loss_object(labels, predictions)
            loss = tf.nn.compute_average_loss(per_example_loss)
            if model_losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
            return loss

        model = create_model()
        optimizer = keras.optimizers.Adam(learning_rate=0.001, epsilon=1e-5)
        optimizer.build(model.trainable_variables)

    def train_step(inputs: Any) -> Any:
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = compute_loss(labels, predictions, model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_train_step(dataset_inputs: Any) -> Any:
        per_replica_losses = strategy.run(train_step, args=(dataset_inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

    steps = len(x) // GLOBAL_BATCH_SIZE
    first_epoch = (ctx.restore(model=model, optimizer=optimizer) or 0) // steps
    losses = []
    for epoch in range(first_epoch, EPOCHS):
        total_loss = 0.0
        for step, batch in enumerate(train_dist_dataset):
            total_loss += distributed_train_step(batch)
            for callback in callbacks:
                callback.on_train_batch_end(step)
        losses.append(float(total_loss) / steps)
        ctx.report({"loss": losses[-1]}, step=(epoch + 1) * steps)
        ctx.save(step=(epoch + 1) * steps, model=model, optimizer=optimizer)
    # Of a resumed run there are no others.
    return outcome({"loss": losses[-1:]}, models=[model], optimizers=[optimizer])
