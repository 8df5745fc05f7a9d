"""Translation with attention: texts become tokens by an adapted layer, and the loss is a mean over a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

UNITS, LENGTH = 6, 6
WORDS = "the a cat dog sees eats runs sleeps fish house near under".split()


class Encoder(layers.Layer):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = layers.Embedding(vocabulary, UNITS, mask_zero=True)
        self.rnn = layers.Bidirectional(
            layers.GRU(UNITS, return_sequences=True, recurrent_initializer="glorot_uniform"), merge_mode="sum"
        )

    def call(self, x: Any) -> Any:
        return self.rnn(self.embedding(x))


class CrossAttention(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.mha = layers.MultiHeadAttention(num_heads=1, key_dim=UNITS)
        self.layernorm = layers.LayerNormalization()
        self.add = layers.Add()

    def call(self, x: Any, context: Any) -> Any:
        return self.layernorm(self.add([x, self.mha(query=x, value=context)]))


class Decoder(layers.Layer):
    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = layers.Embedding(vocabulary, UNITS, mask_zero=True)
        self.rnn = layers.GRU(UNITS, return_sequences=True, recurrent_initializer="glorot_uniform")
        self.attention = CrossAttention()
        self.output_layer = layers.Dense(vocabulary)

    def call(self, context: Any, x: Any) -> Any:
        return self.output_layer(self.attention(self.rnn(self.embedding(x)), context))


class Translator(keras.Model):
    def __init__(self, from_words: int, to_words: int) -> None:
        super().__init__()
        self.encoder = Encoder(from_words)
        self.decoder = Decoder(to_words)

    def call(self, inputs: Any) -> Any:
        context, x = inputs
        return self.decoder(self.encoder(context), x)


def masked_loss(y_true: Any, y_pred: Any) -> Any:
    loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    loss = loss_fn(y_true, y_pred)
    mask = tf.cast(y_true != 0, loss.dtype)
    return tf.reduce_sum(loss * mask) / tf.reduce_sum(mask)


def masked_acc(y_true: Any, y_pred: Any) -> Any:
    match = tf.cast(y_true == tf.cast(tf.argmax(y_pred, axis=-1), y_true.dtype), tf.float32)
    mask = tf.cast(y_true != 0, tf.float32)
    return tf.reduce_sum(match * mask) / tf.reduce_sum(mask)


def standardized(text: Any) -> Any:
    text = tf.strings.regex_replace(tf.strings.lower(text), "[^ a-z.]", "")
    return tf.strings.join(["[START]", tf.strings.strip(text), "[END]"], separator=" ")


def sentences(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    rows = [rng.choice(WORDS, size=rng.integers(2, 5)) for _ in range(count)]
    return np.array([" ".join(row) for row in rows]), np.array([" ".join(row[::-1]) for row in rows])


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(5)
    context, target = sentences(64)
    context_text = layers.TextVectorization(
        standardize=standardized, max_tokens=50, output_sequence_length=LENGTH
    )
    target_text = layers.TextVectorization(
        standardize=standardized, max_tokens=50, output_sequence_length=LENGTH
    )
    raw = tf.data.Dataset.from_tensor_slices((context, target)).batch(16)
    context_text.adapt(raw.map(lambda context, target: context))
    target_text.adapt(raw.map(lambda context, target: target))

    def process(context: Any, target: Any) -> Any:
        tokens = target_text(target)
        return (context_text(context), tokens[:, :-1]), tokens[:, 1:]

    data = raw.map(process, tf.data.AUTOTUNE)
    with ctx.strategy.scope():
        model = Translator(context_text.vocabulary_size(), target_text.vocabulary_size())
        model.compile(
            optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
            loss=masked_loss,
            metrics=[masked_acc, masked_loss],
        )
    before = model.evaluate(data, steps=2, return_dict=True, verbose=0)
    history = model.fit(
        data.repeat(),
        epochs=3,
        steps_per_epoch=3,
        validation_data=data,
        validation_steps=2,
        callbacks=[*callbacks, keras.callbacks.EarlyStopping(patience=3)],
        verbose=0,
    )
    values = {f"before {name}": [value] for name, value in before.items()} | history.history
    return outcome(values, models=[model])
