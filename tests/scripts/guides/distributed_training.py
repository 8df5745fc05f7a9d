"""What TensorFlow's guide "Distributed training with Keras" does."""

import os
import pathlib
import tempfile

import mnist_setup
import numpy as np
import tensorflow as tf

folder = tempfile.mkdtemp()
(x_train, y_train), (x_test, y_test) = mnist_setup.load_data()
mnist_train = tf.data.Dataset.from_tensor_slices((x_train[..., None], y_train.astype(np.int64)))
mnist_test = tf.data.Dataset.from_tensor_slices((x_test[..., None], y_test.astype(np.int64)))

strategy = tf.distribute.MirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}")

BUFFER_SIZE = 10000
BATCH_SIZE_PER_REPLICA = 64
BATCH_SIZE = BATCH_SIZE_PER_REPLICA * strategy.num_replicas_in_sync


def scale(image, label):
    image = tf.cast(image, tf.float32)
    image /= 255
    return image, label


# Alike in every epoch: how often a fit begins to read its data is not a promise of Keras.
train_dataset = mnist_train.map(scale).cache().shuffle(BUFFER_SIZE, reshuffle_each_iteration=False)
train_dataset = train_dataset.batch(BATCH_SIZE)
eval_dataset = mnist_test.map(scale).batch(BATCH_SIZE)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(28, 28, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=0.001),
        metrics=["accuracy"],
    )

checkpoint_dir = os.path.join(folder, "training_checkpoints")
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt_{epoch:04d}.weights.h5")


def decay(epoch):
    return 1e-2 if epoch < 2 else 1e-3


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"Learning rate for epoch {epoch + 1} is {model.optimizer.learning_rate.numpy()}")


callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir=os.path.join(folder, "logs")),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
model.fit(train_dataset, epochs=3, callbacks=callbacks, verbose=2)

latest_checkpoint = sorted(pathlib.Path(checkpoint_dir).glob("*"))[-1]
model.load_weights(latest_checkpoint)
eval_loss, eval_acc = model.evaluate(eval_dataset, verbose=2)
print(f"Final loss: {eval_loss}, Accuracy: {eval_acc}")

path = os.path.join(folder, "my_model.keras")
model.save(path)

# On one device, and in the strategy's scope again.
unreplicated_model = tf.keras.models.load_model(path)
unreplicated_model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=tf.keras.optimizers.Adam(),
    metrics=["accuracy"],
)
eval_loss, eval_acc = unreplicated_model.evaluate(eval_dataset, verbose=2)
print(f"Final loss: {eval_loss}, Accuracy: {eval_acc}")

with strategy.scope():
    replicated_model = tf.keras.models.load_model(path)
    replicated_model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(),
        metrics=["accuracy"],
    )
    eval_loss, eval_acc = replicated_model.evaluate(eval_dataset, verbose=2)
    print(f"Final loss: {eval_loss}, Accuracy: {eval_acc}")
