# check: workers=2,3 keras=legacy,3 rtol=1e-3 kill=10
"""A transformer block for text, with TextVectorization and positions, as keras.io has it."""

import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(8)
good, bad = "good great fine lovely nice happy".split(), "bad awful poor sad dull boring".split()
filler = "the film was and a very plot actor scene i saw".split()
rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 480)
texts = [
    " ".join(rng.permutation([*rng.choice(filler, 8), *rng.choice(good if label else bad, 3)]))
    for label in labels
]
vectorize = layers.TextVectorization(max_tokens=60, output_sequence_length=12)
vectorize.adapt(texts)
print("vocabulary", len(vectorize.get_vocabulary()))


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ff_dim, rate=0.0):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        self.ffn = keras.Sequential([layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)])
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout1 = layers.Dropout(rate)

    def call(self, inputs):
        attn_output = self.dropout1(self.att(inputs, inputs))
        out1 = self.layernorm1(inputs + attn_output)
        return self.layernorm2(out1 + self.ffn(out1))


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        return self.token_emb(x) + self.pos_emb(tf.range(start=0, limit=tf.shape(x)[-1], delta=1))


inputs = layers.Input(shape=(12,), dtype="int64")
x = TokenAndPositionEmbedding(12, 60, 16)(inputs)
x = TransformerBlock(16, 2, 16)(x)
x = layers.GlobalAveragePooling1D()(x)
outputs = layers.Dense(2, activation="softmax")(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(
    optimizer=keras.optimizers.Adam(1e-2), loss="sparse_categorical_crossentropy", metrics=["accuracy"]
)
dataset = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(48)
dataset = dataset.map(lambda text, label: (vectorize(text), label)).cache().prefetch(tf.data.AUTOTUNE)
history = model.fit(dataset.take(8), epochs=2, validation_data=dataset.skip(8), verbose=0)
print("loss", *history.history["loss"])
print("validation", *history.history["val_loss"], *history.history["val_accuracy"])
whole = keras.Sequential([keras.Input(shape=(1,), dtype="string"), vectorize, model])
print("good", *whole.predict(tf.constant([["a great film"], ["a dull plot"]]), verbose=0)[:, 1])
