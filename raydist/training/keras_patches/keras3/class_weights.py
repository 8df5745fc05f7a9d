"""`class_weight` of Keras 3's `fit` as weights of a batch.

Keras has two meanings for a class that the dict leaves out. For arrays and PyDatasets it weighs 1.0
(data_adapter_utils.class_weight_to_sample_weights). For a tf.data.Dataset only a class below the largest key
does, and another ends the run with `indices[3] = 2 is not in [0, 2)` (tf_dataset_adapter). Here it weighs 1.0
for all data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.input.labels import classes_of


def of_batches(class_weight: Mapping[int, float]) -> Callable[..., Any]:
    """Returns a function of `(x, y)` that adds the weight of each label's class; 1.0 if it has none."""
    classes = np.array(sorted(class_weight), np.int64)
    weights = np.array([class_weight[one] for one in sorted(class_weight)], keras.backend.floatx())

    @tf.autograph.experimental.do_not_convert  # which would put its own words around an error
    def weighted(*batch: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        if sample_weight is not None:
            raise UnsupportedError(
                "class_weight is given, and the batches hold sample weights (x, y, sample_weight); give one "
                "of them, as to Keras"
            )
        if tf.nest.is_nested(y):
            raise UnsupportedError(
                "class_weight is given, and the labels are several; Keras takes it for models with one output"
            )
        labels = classes_of(y)
        # The first class that is not below the label.
        places = tf.minimum(tf.searchsorted(classes, tf.reshape(labels, [-1])), len(classes) - 1)
        places = tf.reshape(places, tf.shape(labels))
        is_known = tf.gather(classes, places) == labels
        return x, y, tf.where(is_known, tf.gather(weights, places), tf.ones([], weights.dtype))

    function: Callable[..., Any] = weighted
    return function
