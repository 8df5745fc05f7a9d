"""Transformers: BERT for the classes of sequences, made from a small configuration; nothing is downloaded."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from transformers import BertConfig, TFBertForSequenceClassification

from tests.programs.outcome import Outcome, outcome


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(19)
    rng = np.random.default_rng(19)
    tokens = rng.integers(1, 30, size=(45, 10))
    mask = (np.arange(10) < rng.integers(4, 11, size=(45, 1))).astype("int64")
    features = {"input_ids": tokens * mask, "attention_mask": mask}
    labels = (tokens[:, 0] > 15).astype("int64")
    config = BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=2,
    )
    data = tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(45, seed=19).batch(16)
    with ctx.strategy.scope():
        model = TFBertForSequenceClassification(config)
        model.compile(  # without a loss: the model's own
            optimizer=tf.keras.optimizers.Adam(1e-2, epsilon=1e-5), metrics=["accuracy"]
        )
    history = ctx.fit(model, data, epochs=2, callbacks=callbacks)
    return outcome(history, models=[model])
