"""KerasHub's text classifier as its documentation has it: raw sentences, tokenized by `fit`."""

from __future__ import annotations

from typing import Any

import keras
import keras_hub
import numpy as np

from tests.programs.outcome import Outcome, outcome

WORDS = ("the", "quick", "brown", "fox", "jumped", "over", "lazy", "dog", "home", "work")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(2)
    features = [" ".join(rng.choice(WORDS, rng.integers(3, 8))) for _ in range(45)]
    labels = np.array(["fox" in sentence for sentence in features]).astype("int32")
    vocabulary = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", *WORDS]
    with ctx.strategy.scope():
        tokenizer = keras_hub.models.BertTokenizer(vocabulary=vocabulary)
        preprocessor = keras_hub.models.BertTextClassifierPreprocessor(tokenizer, sequence_length=12)
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=len(vocabulary),
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            max_sequence_length=12,
            dropout=0.0,
        )
        classifier = keras_hub.models.BertTextClassifier(
            backbone=backbone, preprocessor=preprocessor, num_classes=2, dropout=0.0
        )
        classifier.compile(
            optimizer=keras.optimizers.AdamW(1e-2, epsilon=1e-5),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    history = ctx.fit(classifier, np.array(features), labels, epochs=2, batch_size=16, callbacks=callbacks)
    return outcome(history, models=[classifier])
