"""What Keras 3 raises for programs that were written for Keras 2, and which names it lacks."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import numpy as np

# Each runs under tf_keras.
MISTAKES = (
    "keras.metrics.Mean().reset_states()",
    "keras.experimental",
    "keras.estimator",
    "keras.losses.mean_squared_error",
    "keras.optimizers.legacy.SGD()",
    "keras.optimizers.legacy.Nadam()",
    "keras.optimizers.experimental",
    "keras.layers.experimental.preprocessing",
    "tf.compat.v1.layers.Dense",
    "exec('from tensorflow.keras.layers import DenseFeatures')",
    "exec('import tensorflow.keras.layers.experimental')",
    "keras.callbacks.ModelCheckpoint('x.keras', period=3)",
    "keras.callbacks.ModelCheckpoint(folder + 'x')",
    "keras.callbacks.ModelCheckpoint(folder + 'x', save_weights_only=True)",
    "keras.callbacks.BackupAndRestore(folder, save_before_preemption=True)",
    "keras.optimizers.Adam(lr=0.1)",
    "keras.optimizers.Adam(jit_compile=True)",
    "keras.optimizers.Adam().lr",
    "keras.optimizers.SGD().minimize",
    "model.fit(x, x, verbose=0, workers=2)",
    "model.evaluate(x, x, verbose=0, use_multiprocessing=True)",
    "model.predict(x, verbose=0, max_queue_size=1)",
    "model.fit_generator",
    "model.train_on_batch(x, x, reset_metrics=False)",
    "model.compile('sgd', 'mse', pss_evaluation_shards=1)",
    "model.save(folder + 'saved')",
    "model.save_weights(folder + 'saved')",
    "model.load_weights(folder + 'saved')",
    "model.save_weights(folder + 'x.weights.h5', save_format='h5')",
    "keras.layers.Dense(2, batch_input_shape=(1, 2))",
    "keras.layers.Dense(2, weights=[x])",
    "keras.layers.LSTM(2, time_major=True)",
    "keras.activations.relu(x, alpha=0.2)",
    "keras.losses.MeanSquaredError(reduction=keras.losses.Reduction.AUTO)",
    "keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD()).get_scaled_loss",
    "keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(), dynamic=False, initial_scale=2)",
    "keras.backend.learning_phase()",
    "tf.reduce_mean(keras.Input((3,)))",
    "model.add_weight('w', shape=(2,))",
    "model.add_weight(name='v', shape=(2,), synchronization=tf.VariableSynchronization.ON_READ)",
    "in_function(lambda: mean.reset_states())",
)
OTHERS = (
    "model.fitt(x)",
    "keras.layers.Danse(1)",
    "keras.layers.Dense(1, unit=3)",
    "model.fit(x, x, epoch=3)",
    "keras.optimizers.Adam(rate=3)",
    "exec('from tensorflow.keras.layers import Danse')",
    "{}.reset",
    "int('x')",
)


def told(ctx: Any, *, storage: str) -> dict[str, Any]:
    """Returns by each mistake and other error what the run tells."""
    import tensorflow as tf

    from raydist.task import failure_of

    keras = tf.keras
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    names = {"tf": tf, "keras": keras, "model": model, "x": np.zeros((4, 2)), "folder": f"{storage}/"}
    names |= {"mean": keras.metrics.Mean(), "in_function": lambda function: tf.function(function)()}
    found = {}
    for source in (*MISTAKES, *OTHERS):
        try:
            eval(source, names)
        except Exception as error:
            found[source] = failure_of(ctx.task, error).message
        else:
            found[source] = "runs"
    return found


def notes_on_rates(ctx: Any) -> dict[str, Any]:
    """Returns the notes of a run that gives its optimizer `lr`."""
    import tensorflow as tf

    from tests.support.inside import notes_of

    with ctx.strategy.scope():
        rate = float(tf.keras.optimizers.Adam(lr=0.1).learning_rate)
    return {"rate": rate, "notes": notes_of(ctx)}


def differences(ctx: Any) -> dict[str, Any]:
    """Returns the names below `tf.keras` that tf_keras has and Keras 3 does not have, or only raises for.

    And of all classes the attributes, of tf_keras and of Keras 3.
    """
    import keras._tf_keras.keras as new
    import tf_keras.api._v2.keras as old

    attributes: dict[str, set[str]] = {"old": set(), "new": set()}
    missing = []
    for path, one, other in _pairs(old, new, ""):
        if other is None or "LegacyOptimizer" in repr(other):
            missing.append(path)
        elif isinstance(one, type) and isinstance(other, type):
            attributes["old"] |= set(dir(one))
            attributes["new"] |= set(dir(other))
    return {"missing": missing, **{name: sorted(found) for name, found in attributes.items()}}


def _pairs(old: Any, new: Any, prefix: str) -> Iterator[tuple[str, Any, Any]]:
    for name in sorted(dir(old)):
        one, other = getattr(old, name), getattr(new, name, None)
        is_module = isinstance(one, types.ModuleType)
        if name.startswith("_") or (is_module and not one.__name__.startswith("tf_keras")):
            continue
        if is_module and isinstance(other, types.ModuleType):
            yield from _pairs(one, other, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", one, other
