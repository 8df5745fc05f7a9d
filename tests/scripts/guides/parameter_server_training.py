"""What TensorFlow's guide "Parameter server training with ParameterServerStrategy" does, on a cluster."""

import os
import random
import tempfile

import tensorflow as tf

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol=cluster_resolver.rpc_layer or "grpc",
        start=True,
    )
    server.join()

NUM_PS = cluster_resolver.cluster_spec().num_tasks("ps")
variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=(256 << 10), max_shards=NUM_PS
)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=variable_partitioner)

# Training with Model.fit
global_batch_size = 64


def random_dataset(_=None):
    x = tf.random.uniform((10, 10))
    y = tf.random.uniform((10,))
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat()
    dataset = dataset.batch(global_batch_size)
    return dataset.prefetch(2)


with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(10)])
    model.compile(tf.keras.optimizers.legacy.SGD(), loss="mse", steps_per_execution=10)

working_dir = os.path.join(tempfile.gettempdir(), "my_working_dir")
callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir=os.path.join(working_dir, "log")),
    tf.keras.callbacks.ModelCheckpoint(filepath=os.path.join(working_dir, "ckpt")),
    tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(working_dir, "backup")),
]
history = model.fit(random_dataset(), epochs=3, steps_per_epoch=20, callbacks=callbacks, verbose=2)
print(f"Fit loss: {history.history['loss'][-1]}")

# As earlier versions of the guide give data.
creator = tf.keras.utils.experimental.DatasetCreator(random_dataset)
model.fit(creator, epochs=1, steps_per_epoch=20, verbose=2)

# Training with a loop of its own
feature_vocab = ["avenger", "ironman", "batman", "hulk", "spiderman", "kingkong", "wonder_woman"]
label_vocab = ["yes", "no"]

with strategy.scope():
    feature_lookup_layer = tf.keras.layers.StringLookup(vocabulary=feature_vocab, mask_token=None)
    label_lookup_layer = tf.keras.layers.StringLookup(
        vocabulary=label_vocab, num_oov_indices=0, mask_token=None
    )
    raw_feature_input = tf.keras.layers.Input(shape=(3,), dtype=tf.string, name="feature")
    feature_preprocess_stage = tf.keras.Model(
        {"features": raw_feature_input}, feature_lookup_layer(raw_feature_input)
    )
    raw_label_input = tf.keras.layers.Input(shape=(1,), dtype=tf.string, name="label")
    label_preprocess_stage = tf.keras.Model({"label": raw_label_input}, label_lookup_layer(raw_label_input))


def feature_and_label_gen(num_examples=200):
    examples = {"features": [], "label": []}
    for _ in range(num_examples):
        features = random.sample(feature_vocab, 3)
        examples["features"].append(features)
        examples["label"].append(["yes"] if "avenger" in features else ["no"])
    return examples


examples = feature_and_label_gen()


def preprocessed(x):
    features = {"features": feature_preprocess_stage(x["features"])}
    return features, label_preprocess_stage(x["label"])


def dataset_fn(_):
    raw_dataset = tf.data.Dataset.from_tensor_slices(examples)
    return raw_dataset.map(preprocessed).shuffle(200).batch(32).repeat()


with strategy.scope():
    model_input = tf.keras.layers.Input(shape=(3,), dtype=tf.int64, name="model_input")
    emb_layer = tf.keras.layers.Embedding(
        input_dim=len(feature_lookup_layer.get_vocabulary()), output_dim=16384
    )
    emb_output = tf.reduce_mean(emb_layer(model_input), axis=1)
    dense_output = tf.keras.layers.Dense(
        units=1, activation="sigmoid", kernel_regularizer=tf.keras.regularizers.L2(1e-4)
    )(emb_output)
    model = tf.keras.Model({"features": model_input}, dense_output)
    optimizer = tf.keras.optimizers.legacy.RMSprop(learning_rate=0.1)
    accuracy = tf.keras.metrics.Accuracy()

# Of 512 KiB: a half on each of two parameter servers.
assert len(emb_layer.weights) == min(NUM_PS, 2)
assert emb_layer.weights[0].shape == (8 // len(emb_layer.weights), 16384)


@tf.function
def step_fn(iterator):
    def replica_fn(batch_data, labels):
        with tf.GradientTape() as tape:
            pred = model(batch_data, training=True)
            per_example_loss = tf.keras.losses.BinaryCrossentropy(reduction=tf.keras.losses.Reduction.NONE)(
                labels, pred
            )
            loss = tf.nn.compute_average_loss(per_example_loss)
            model_losses = model.losses
            if model_losses:
                loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
        accuracy.update_state(labels, actual_pred)
        return loss

    batch_data, labels = next(iterator)
    losses = strategy.run(replica_fn, args=(batch_data, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)


@tf.function
def per_worker_dataset_fn():
    return strategy.distribute_datasets_from_function(dataset_fn)


per_worker_dataset = coordinator.create_per_worker_dataset(per_worker_dataset_fn)
per_worker_iterator = iter(per_worker_dataset)

num_epochs = 4
steps_per_epoch = 5
for i in range(num_epochs):
    accuracy.reset_states()
    for _ in range(steps_per_epoch):
        coordinator.schedule(step_fn, args=(per_worker_iterator,))
    coordinator.join()
    print(f"Finished epoch {i}, accuracy is {accuracy.result().numpy()}")

loss = coordinator.schedule(step_fn, args=(per_worker_iterator,))
print(f"Final loss: {loss.fetch()}, Accuracy: {accuracy.result().numpy()}")

# Evaluation on the coordinator, and on the workers
eval_dataset = (
    tf.data.Dataset.from_tensor_slices(feature_and_label_gen(num_examples=16)).map(preprocessed).batch(8)
)
eval_accuracy = tf.keras.metrics.Accuracy()
for batch_data, labels in eval_dataset:
    pred = model(batch_data, training=False)
    actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
    eval_accuracy.update_state(labels, actual_pred)
print(f"Evaluation accuracy: {eval_accuracy.result()}")

with strategy.scope():
    eval_accuracy = tf.keras.metrics.Accuracy()


@tf.function
def eval_step(iterator):
    def replica_fn(batch_data, labels):
        pred = model(batch_data, training=False)
        actual_pred = tf.cast(tf.greater(pred, 0.5), tf.int64)
        eval_accuracy.update_state(labels, actual_pred)

    batch_data, labels = next(iterator)
    strategy.run(replica_fn, args=(batch_data, labels))


def eval_dataset_fn():
    examples = feature_and_label_gen(num_examples=16)
    return tf.data.Dataset.from_tensor_slices(examples).map(preprocessed).shuffle(16).repeat().batch(8)


per_worker_eval_dataset = coordinator.create_per_worker_dataset(eval_dataset_fn)
per_worker_eval_iterator = iter(per_worker_eval_dataset)
for _ in range(2):
    coordinator.schedule(eval_step, args=(per_worker_eval_iterator,))
coordinator.join()
print(f"Evaluation accuracy: {eval_accuracy.result()}")
