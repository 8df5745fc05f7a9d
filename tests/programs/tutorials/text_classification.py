"""Classification of texts: a text layer adapted before the data, then in a model that is exported with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

WORDS = "great awful<br /> movie plot, actor boring! fine script music scenes".split()
MAX_FEATURES, LENGTH = 20, 8


def custom_standardization(input_data: Any) -> Any:
    stripped_html = tf.strings.regex_replace(tf.strings.lower(input_data), "<br />", " ")
    return tf.strings.regex_replace(stripped_html, "[!,]", "")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(16)
    rng = np.random.default_rng(16)
    texts = np.array([" ".join(rng.choice(WORDS, 7)) for _ in range(64)])
    labels = rng.integers(0, 2, 64)
    rows = tf.data.Dataset.from_tensor_slices((texts, labels))
    raw_train_ds, raw_test_ds = rows.take(48).batch(16), rows.skip(48).batch(8)
    vectorize_layer = layers.TextVectorization(
        standardize=custom_standardization,
        max_tokens=MAX_FEATURES,
        output_mode="int",
        output_sequence_length=LENGTH,
    )
    vectorize_layer.adapt(raw_train_ds.map(lambda x, y: x))

    def vectorize_text(text: Any, label: Any) -> Any:
        return vectorize_layer(tf.expand_dims(text, -1)), label

    train_ds = raw_train_ds.map(vectorize_text).cache().prefetch(buffer_size=tf.data.AUTOTUNE)
    test_ds = raw_test_ds.map(vectorize_text).cache().prefetch(buffer_size=tf.data.AUTOTUNE)
    with ctx.strategy.scope():
        model = keras.Sequential(
            [
                layers.Embedding(MAX_FEATURES, 4),
                layers.Dropout(0.0),
                layers.GlobalAveragePooling1D(),
                layers.Dense(1, activation="sigmoid"),
            ]
        )
        model.compile(
            loss=keras.losses.BinaryCrossentropy(),
            optimizer=keras.optimizers.Adam(0.01, epsilon=1e-5),
            metrics=[keras.metrics.BinaryAccuracy(threshold=0.5)],
        )
    history = model.fit(train_ds, validation_data=test_ds, epochs=3, verbose=0, callbacks=[*callbacks])
    values: dict[str, Any] = dict(history.history)
    values["evaluated"] = model.evaluate(test_ds, verbose=0)
    with ctx.strategy.scope():
        export_model = keras.Sequential([vectorize_layer, model, layers.Activation("linear")])
        export_model.compile(
            loss=keras.losses.BinaryCrossentropy(from_logits=False),
            optimizer=keras.optimizers.Adam(),
            metrics=["accuracy"],
        )
    values["exported"] = export_model.evaluate(raw_test_ds, verbose=0)
    values["predicted"] = export_model.predict(tf.constant(texts[:5]), verbose=0).ravel()
    values["of batches"] = export_model.predict(raw_test_ds.map(lambda x, y: x), verbose=0).ravel()
    return outcome(values, models=[model])
