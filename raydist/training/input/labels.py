"""The classes that a batch's labels name."""

from __future__ import annotations

import tensorflow as tf

NO_WEIGHT = (
    "class_weight has no weight for a class of the labels, and tf_keras needs one for each class; give the "
    "others a weight of 1.0"
)


def classes_of(labels: tf.Tensor) -> tf.Tensor:
    """Returns the class of each label; of a one-hot label the place of its largest number."""
    if labels.shape.rank == 1:
        return _as_ints(labels)
    return tf.cond(
        tf.shape(labels)[-1] > 1,
        lambda: tf.argmax(labels, axis=-1),
        lambda: _as_ints(labels[..., 0]),
    )


def _as_ints(labels: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.round(labels) if labels.dtype.is_floating else labels, tf.int64)
