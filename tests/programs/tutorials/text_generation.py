"""Text generation: a GRU of characters, a `train_step` under `@tf.function`, and a loop of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras

TEXT = "to be or not to be that is the question whether it is nobler in the mind to suffer " * 4
LENGTH, BATCH_SIZE = 12, 8


class Generator(keras.Model):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = keras.layers.Embedding(vocabulary, 6)
        self.gru = keras.layers.GRU(8, return_sequences=True, return_state=True)
        self.dense = keras.layers.Dense(vocabulary)

    def call(
        self, inputs: Any, states: Any = None, return_state: bool = False, training: bool = False
    ) -> Any:
        x = self.embedding(inputs, training=training)
        if states is None:
            states = [tf.zeros((tf.shape(inputs)[0], 8))]
        x, states = self.gru(x, initial_state=states, training=training)
        x = self.dense(x, training=training)
        return (x, states) if return_state else x


class Custom(Generator):
    @tf.function
    def train_step(self, inputs: Any) -> dict[str, Any]:
        inputs, labels = inputs
        with tf.GradientTape() as tape:
            predictions = self(inputs, training=True)
            loss = keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
            loss = tf.reduce_mean(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    ids_from_chars = keras.layers.StringLookup(vocabulary=sorted(set(TEXT)), mask_token=None)
    chars_from_ids = keras.layers.StringLookup(
        vocabulary=ids_from_chars.get_vocabulary(), invert=True, mask_token=None
    )
    ids = ids_from_chars(tf.strings.unicode_split(TEXT, "UTF-8"))
    sequences = tf.data.Dataset.from_tensor_slices(ids).batch(LENGTH + 1, drop_remainder=True)
    dataset = (
        sequences.map(lambda one: (one[:-1], one[1:]))
        .shuffle(100, seed=4)
        .batch(BATCH_SIZE, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )
    vocabulary = len(ids_from_chars.get_vocabulary())
    values, models = {}, []
    for kind in (Generator, Custom):
        keras.utils.set_random_seed(4)
        with ctx.strategy.scope():
            model = kind(vocabulary)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5), loss=loss)
        history = model.fit(dataset, epochs=2, verbose=0, callbacks=[*callbacks])
        if kind is Generator:  # for the other plain Keras shows 0, of a metric that its step does not update
            values |= history.history
        values[f"{kind.__name__} words"] = _generated(model, ids_from_chars, chars_from_ids)
        models.append(model)
    return outcome(values, models=models)


def _generated(model: Any, ids_from_chars: Any, chars_from_ids: Any) -> np.ndarray:
    """Returns the characters that follow, the likeliest each, as numbers."""
    states, next_char, result = None, tf.constant(["to be "]), []
    for _ in range(5):
        ids = ids_from_chars(tf.strings.unicode_split(next_char, "UTF-8")).to_tensor()
        logits, states = model(inputs=ids, states=states, return_state=True)
        next_char = chars_from_ids(tf.argmax(logits[:, -1, :], axis=-1))
        result.append(ord(next_char[0].numpy().decode()))
    return np.array(result)
