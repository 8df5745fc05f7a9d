"""As TensorFlow's guide "Parameter server training with ParameterServerStrategy", with a custom loop.

Usage: parameter_server.py OUT
"""

import json
import os
import sys

import digits_setup
import tensorflow as tf

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    # Start a TensorFlow server and wait.
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol=cluster_resolver.rpc_layer or "grpc",
        start=True,
    )
    print(f"serving as {cluster_resolver.task_type}", flush=True)
    server.join()

tf.keras.utils.set_random_seed(7)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

with strategy.scope():
    model = digits_setup.build_cnn_model()
    optimizer = tf.keras.optimizers.SGD(learning_rate=0.1)
    optimizer.build(model.trainable_variables)

x_train, y_train = digits_setup.digits()


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            per_example_loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=pred)
            loss = tf.nn.compute_average_loss(per_example_loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


def dataset_fn(_):
    return digits_setup.digits_dataset(64)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
per_worker_iterator = iter(per_worker_dataset)

num_epochs = 10
steps_per_epoch = 40
for i in range(num_epochs):
    for _ in range(steps_per_epoch):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    # Wait at epoch boundaries.
    coordinator.join()
    print(f"Finished epoch {i}.")

loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
predictions = tf.argmax(model(x_train), axis=-1)
accuracy = float(tf.reduce_mean(tf.cast(predictions == y_train, tf.float32)))
print(f"Final loss is {loss.fetch()}, accuracy {accuracy}")

with open(os.path.join(sys.argv[1], "chief-0.json"), "w") as file:
    json.dump({"accuracy": accuracy, "iterations": int(optimizer.iterations.numpy())}, file)
