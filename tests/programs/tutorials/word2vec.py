"""Word2Vec: two embeddings and their products, of pairs of words that a text layer has made."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

LINES = [
    "the wide road shimmered in the hot sun",
    "the sun was hot and the road was wide",
    "a wide sea shimmered under the sun",
    "in the sea the road ends",
] * 3
NUM_NEGATIVE = 3


class Word2Vec(keras.Model):
    def __init__(self, vocab_size: int, embedding_dim: int) -> None:
        super().__init__()
        self.target_embedding = layers.Embedding(vocab_size, embedding_dim, name="w2v_embedding")
        self.context_embedding = layers.Embedding(vocab_size, embedding_dim)

    def call(self, pair: Any) -> Any:
        target, context = pair
        if len(target.shape) == 2:
            target = tf.squeeze(target, axis=1)
        return tf.einsum("be,bce->bc", self.target_embedding(target), self.context_embedding(context))


def skip_grams(sequences: list[Any], vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(12)
    targets, contexts, labels = [], [], []
    for sequence in sequences:
        for position, word in enumerate(sequence[:-1]):
            if word == 0 or sequence[position + 1] == 0:
                continue
            targets.append(word)
            contexts.append([sequence[position + 1], *rng.integers(1, vocab_size, NUM_NEGATIVE)])
            labels.append([1] + [0] * NUM_NEGATIVE)
    return np.array(targets), np.array(contexts), np.array(labels)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(12)
    text_ds = tf.data.Dataset.from_tensor_slices(LINES)
    vectorize_layer = layers.TextVectorization(max_tokens=30, output_mode="int", output_sequence_length=8)
    vectorize_layer.adapt(text_ds.batch(4))
    sequences = list(text_ds.batch(4).map(vectorize_layer).unbatch().as_numpy_iterator())
    targets, contexts, labels = skip_grams(sequences, vectorize_layer.vocabulary_size())
    dataset = tf.data.Dataset.from_tensor_slices(((targets, contexts), labels))
    dataset = dataset.shuffle(100, seed=12).batch(16, drop_remainder=True).cache().prefetch(tf.data.AUTOTUNE)
    with ctx.strategy.scope():
        model = Word2Vec(vectorize_layer.vocabulary_size(), 5)
        model.compile(
            optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
            loss=keras.losses.CategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(dataset, epochs=3, callbacks=[*callbacks], verbose=0)
    vectors = model.get_layer("w2v_embedding").get_weights()[0]
    values = {**history.history, "vectors": vectors.ravel()}
    return outcome(values, models=[model])
