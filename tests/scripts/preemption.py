"""A loop that saves before a preemption, by TensorFlow's PreemptionCheckpointHandler.

Each task writes the steps that it does into a file of the folder. After `hold_at` of them it waits until the
folder has a file `release`, and takes its time from then on, until it is told to save.

    python preemption.py FOLDER HOLD_AT
"""

import os
import sys
import time

import numpy as np
import tensorflow as tf

NUM_STEPS, BATCH_SIZE = 30, 8
folder, hold_at = sys.argv[1], int(sys.argv[2])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
resolver = strategy.cluster_resolver
x = np.random.default_rng(0).normal(size=(NUM_STEPS * BATCH_SIZE, 3)).astype("float32")
y = (x @ [1.0, -2.0, 3.0]).astype("float32")[:, None]

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
    optimizer.build(model.trainable_variables)
    step = tf.Variable(0, dtype="int64", aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=step)
saved = os.path.join(folder, "saved")
handler = tf.distribute.experimental.PreemptionCheckpointHandler(resolver, checkpoint, saved)


@tf.function
def train_step(batch):
    def replica_step(inputs, labels):
        with tf.GradientTape() as tape:
            errors = tf.square(model(inputs, training=True) - labels)
            loss = tf.reduce_sum(errors) / BATCH_SIZE
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    strategy.run(replica_step, args=batch)


data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE).skip(step.numpy())
steps = open(os.path.join(folder, f"steps-{resolver.task_id}.txt"), "a", buffering=1)
for batch in strategy.experimental_distribute_dataset(data):
    handler.run(train_step, batch)
    step.assign_add(1)
    print(int(step), file=steps)
    while step == hold_at and not os.path.exists(os.path.join(folder, "release")):
        time.sleep(0.05)
    if step > hold_at > 0 and not os.path.exists(saved):
        time.sleep(0.5)
weights = np.concatenate([each.ravel() for each in model.get_weights()])
np.save(os.path.join(folder, f"weights-{resolver.task_id}.npy"), weights)
