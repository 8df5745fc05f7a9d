"""As TensorFlow's guide "Distributed input": both ways of giving data, and both ways of going through them.

Usage: distributed_input.py OUT
"""

import json
import os
import sys

import numpy as np
import tensorflow as tf

tf.keras.utils.set_random_seed(7)
strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = 16
features = np.random.RandomState(3).normal(size=(96, 4)).astype(np.float32)
targets = features @ np.array([[1.0], [-2.0], [3.0], [0.5]], np.float32)

with strategy.scope():
    weights = tf.Variable(tf.zeros([4, 1]))


@tf.function
def train_step(inputs):
    def step_fn(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            losses = tf.reduce_sum(tf.square(tf.matmul(x, weights) - y), axis=-1)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
        gradient = tape.gradient(loss, weights)
        gradient = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient)
        weights.assign_sub(0.05 * gradient)
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step_fn, args=(inputs,)), axis=None)


losses = []

# tf.distribute.Strategy.experimental_distribute_dataset: rebatched and sharded by TensorFlow.
dataset = tf.data.Dataset.from_tensor_slices((features, targets)).batch(global_batch_size)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
dist_dataset = strategy.experimental_distribute_dataset(dataset.with_options(options))
for x in dist_dataset:
    losses.append(float(train_step(x)))


# tf.distribute.Strategy.distribute_datasets_from_function: sharded by the user.
def dataset_fn(input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    dataset = tf.data.Dataset.from_tensor_slices((features, targets)).repeat()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return dataset.batch(batch_size).prefetch(2)


iterator = iter(strategy.distribute_datasets_from_function(dataset_fn))
for _ in range(12):
    losses.append(float(train_step(next(iterator))))

resolver = strategy.cluster_resolver
with open(os.path.join(sys.argv[1], f"{resolver.task_type}-{resolver.task_id}.json"), "w") as file:
    json.dump({"loss": losses, "weights": weights.numpy().ravel().tolist()}, file)
