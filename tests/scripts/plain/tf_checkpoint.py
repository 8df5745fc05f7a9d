# check: workers=2 keras=3,legacy rtol=1e-4 kill=30
"""tf.train.CheckpointManager and a summary writer beside fit, in relative and in absolute folders."""

import os
import tempfile

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale
from tensorflow import keras

keras.utils.set_random_seed(15)
x, y = load_wine(return_X_y=True)
x = scale(x)


def build():
    model = keras.Sequential([keras.Input((13,)), keras.layers.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


for folder in ("checkpoints", tempfile.mkdtemp(), os.path.join(tempfile.gettempdir(), "plain_tf_checkpoint")):
    model, epoch = build(), tf.Variable(0)
    checkpoint = tf.train.Checkpoint(model=model, epoch=epoch)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    writer = tf.summary.create_file_writer(os.path.join("logs", "train"))
    for _ in range(3):
        history = model.fit(x, y, batch_size=32, epochs=1, verbose=0)
        epoch.assign_add(1)
        saved = manager.save()
        with writer.as_default():
            tf.summary.scalar("loss", history.history["loss"][0], step=int(epoch))
    for _ in range(8):
        saved = manager.save()
    print("saved", len(manager.checkpoints), int(saved.rpartition("-")[2]))

    other, epochs = build(), tf.Variable(0)
    other(x[:1])
    tf.train.Checkpoint(model=other, epoch=epochs).restore(manager.latest_checkpoint).expect_partial()
    print("restored", int(epochs), *other.evaluate(x, y, verbose=0))
    before = tf.train.Checkpoint(model=other).read(manager.checkpoints[0])
    before.expect_partial()
    print("before", *other.evaluate(x, y, verbose=0))
    same = [np.abs(one - two).max() for one, two in zip(other.get_weights(), model.get_weights())]
    print("moved", *map(float, same))
