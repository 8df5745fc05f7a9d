"""Train functions whose models have state that no checkpoint holds. Import TensorFlow inside only."""

from __future__ import annotations

from typing import Any

from tests.support.inside import notes_of
from tests.support.train_functions import dense_model, examples


def state_that_cannot_be_saved(ctx: Any) -> dict[str, Any]:
    """Fits a model that has a table, an iterator and an optimizer that is not built; returns the notes."""
    import tensorflow as tf

    data = tf.data.Dataset.from_tensor_slices(examples(32)).batch(16)
    with ctx.strategy.scope():
        model = dense_model(tf.keras, "adam")
        model.counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
        model.replay = iter(data)
        model.d_optimizer = tf.keras.optimizers.Adam(name="for_later")
    ctx.fit(model, data, epochs=1)
    return {"notes": notes_of(ctx)}
