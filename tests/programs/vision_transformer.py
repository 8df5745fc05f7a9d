"""Image classification with Vision Transformer: patches, their positions, attention among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

IMAGE_SIZE = 8
PATCH_SIZE = 4
NUM_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2
PROJECTION_DIM = 8
NUM_CLASSES = 3


def mlp(x: Any, hidden_units: list[int]) -> Any:
    for units in hidden_units:
        x = layers.Dense(units, activation="gelu")(x)
    return x


class Patches(layers.Layer):
    def __init__(self, patch_size: int) -> None:
        super().__init__()
        self.patch_size = patch_size

    def call(self, images: Any) -> Any:
        batch_size = tf.shape(images)[0]
        patches = tf.image.extract_patches(
            images=images,
            sizes=[1, self.patch_size, self.patch_size, 1],
            strides=[1, self.patch_size, self.patch_size, 1],
            rates=[1, 1, 1, 1],
            padding="VALID",
        )
        patch_dims = patches.shape[-1]
        return tf.reshape(patches, [batch_size, -1, patch_dims])


class PatchEncoder(layers.Layer):
    def __init__(self, num_patches: int, projection_dim: int) -> None:
        super().__init__()
        self.num_patches = num_patches
        self.projection = layers.Dense(units=projection_dim)
        self.position_embedding = layers.Embedding(input_dim=num_patches, output_dim=projection_dim)

    def call(self, patch: Any) -> Any:
        positions = tf.range(start=0, limit=self.num_patches, delta=1)
        return self.projection(patch) + self.position_embedding(positions)


def create_vit_classifier(patches_layer: Any) -> Any:
    inputs = keras.Input(shape=(IMAGE_SIZE, IMAGE_SIZE, 1))
    patches = patches_layer(inputs)
    encoded_patches = PatchEncoder(NUM_PATCHES, PROJECTION_DIM)(patches)
    for _ in range(1):
        x1 = layers.LayerNormalization(epsilon=1e-6)(encoded_patches)
        attention_output = layers.MultiHeadAttention(num_heads=2, key_dim=PROJECTION_DIM, dropout=0.0)(x1, x1)
        x2 = layers.Add()([attention_output, encoded_patches])
        x3 = layers.LayerNormalization(epsilon=1e-6)(x2)
        x3 = mlp(x3, hidden_units=[PROJECTION_DIM * 2, PROJECTION_DIM])
        encoded_patches = layers.Add()([x3, x2])
    representation = layers.LayerNormalization(epsilon=1e-6)(encoded_patches)
    representation = layers.Flatten()(representation)
    features = mlp(representation, hidden_units=[8])
    logits = layers.Dense(NUM_CLASSES)(features)
    return keras.Model(inputs=inputs, outputs=logits)


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    y = rng.integers(NUM_CLASSES, size=count)
    x = rng.normal(size=(count, IMAGE_SIZE, IMAGE_SIZE, 1)) + y[:, None, None, None]
    return x.astype("float32"), y


def train(ctx: Any, *, callbacks: Any = (), make_patches: Any = Patches) -> Outcome:
    keras.utils.set_random_seed(4)
    with ctx.strategy.scope():
        model = create_vit_classifier(make_patches(PATCH_SIZE))
        # epsilon: as in text_transformer.py
        optimizer = keras.optimizers.AdamW(learning_rate=1e-3, weight_decay=1e-4, epsilon=1e-4)
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[
                keras.metrics.SparseCategoricalAccuracy(name="accuracy"),
                keras.metrics.SparseTopKCategoricalAccuracy(2, name="top-2-accuracy"),
            ],
        )
    data = tf.data.Dataset.from_tensor_slices(images(80)).shuffle(80, seed=4).batch(32)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
