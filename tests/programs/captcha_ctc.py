"""OCR model for reading Captchas: a layer adds the CTC loss, one value for each example of the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

NUM_CHARACTERS = 4
LENGTH = 2
IMG_WIDTH = 16
IMG_HEIGHT = 4


def ctc_batch_cost(y_true: Any, y_pred: Any, input_length: Any, label_length: Any) -> Any:
    """What `keras.backend.ctc_batch_cost` was, and what the example has since."""
    loss = tf.nn.ctc_loss(
        labels=tf.cast(y_true, tf.int32),
        logits=tf.math.log(tf.transpose(y_pred, perm=[1, 0, 2]) + keras.backend.epsilon()),
        label_length=tf.cast(tf.squeeze(label_length, axis=-1), tf.int32),
        logit_length=tf.cast(tf.squeeze(input_length, axis=-1), tf.int32),
        blank_index=-1,
    )
    return tf.expand_dims(loss, 1)


class CTCLayer(layers.Layer):
    def __init__(self, name: str | None = None) -> None:
        super().__init__(name=name)
        self.loss_fn = ctc_batch_cost

    def call(self, y_true: Any, y_pred: Any) -> Any:
        batch_len = tf.cast(tf.shape(y_true)[0], dtype="int64")
        input_length = tf.cast(tf.shape(y_pred)[1], dtype="int64")
        label_length = tf.cast(tf.shape(y_true)[1], dtype="int64")
        input_length = input_length * tf.ones(shape=(batch_len, 1), dtype="int64")
        label_length = label_length * tf.ones(shape=(batch_len, 1), dtype="int64")
        loss = self.loss_fn(y_true, y_pred, input_length, label_length)
        self.add_loss(loss)
        return y_pred


def build_model() -> Any:
    input_img = layers.Input(shape=(IMG_WIDTH, IMG_HEIGHT, 1), name="image", dtype="float32")
    labels = layers.Input(name="label", shape=(LENGTH,), dtype="float32")
    x = layers.Conv2D(4, (3, 3), activation="relu", padding="same", name="Conv1")(input_img)
    x = layers.MaxPooling2D((2, 2), name="pool1")(x)
    x = layers.Reshape(target_shape=(IMG_WIDTH // 2, IMG_HEIGHT // 2 * 4), name="reshape")(x)
    x = layers.Dense(6, activation="relu", name="dense1")(x)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    x = layers.Dense(NUM_CHARACTERS + 1, activation="softmax", name="dense2")(x)
    output = CTCLayer(name="ctc_loss")(labels, x)
    model = keras.models.Model(inputs=[input_img, labels], outputs=output, name="ocr_model_v1")
    model.compile(optimizer=keras.optimizers.SGD(1e-3))
    return model


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(11)
    rng = np.random.default_rng(11)
    labels = rng.integers(NUM_CHARACTERS, size=(45, LENGTH)).astype("float32")
    images = rng.random((45, IMG_WIDTH, IMG_HEIGHT, 1), dtype="float32")
    with ctx.strategy.scope():
        model = build_model()
    data = tf.data.Dataset.from_tensor_slices({"image": images, "label": labels}).batch(16)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
