"""The self-check: what the patches have to bring about, on a tiny model and two replicas in one process.

It runs in a process of its own, because it uses TensorFlow before a strategy of several workers exists. Each
check trains on one device and on two replicas, patched, and compares; each is one that fails without a patch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from raydist.training import tf_private
from raydist.training.keras_patches.keras3 import patches

# The tolerance of tests/training: sums of floats in another order.
_TOLERANCE = 1e-5
# 21 examples in batches of 5: two replicas get 3 and 2, and of the last batch 1 and none.
_COUNT, _BATCH = 21, 5

Found = dict[str, Any]  # by name what is compared, such as weights


def main(name: str, folder: str) -> None:
    """Checks `keras` or `tf_keras`, and writes what failed into the folder, by check one sentence."""
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    library = _patched(name)
    one = tf.distribute.OneDeviceStrategy("CPU:0")
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    failed = {}
    for what, check in checks_of(name).items():
        try:
            problem = check(library, one, two)
        except Exception as error:  # the library does not do what the patches rely on
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
        if problem is not None:
            failed[what] = problem
    Path(folder, "failed.json").write_text(json.dumps(failed))


def _patched(name: str) -> ModuleType:
    if name == "tf_keras":
        import tf_keras

        from raydist.training.keras_patches.tf_keras import patches as of_tf_keras

        of_tf_keras.patch(sync_batchnorm=False, check=None)
        return tf_keras
    patches.patch(sync_batchnorm=False, check=None)
    return keras


Check = Callable[[ModuleType, Any, Any], str | None]


def checks_of(name: str) -> dict[str, Check]:
    """Returns the checks of a library by name; each returns what is wrong, or None."""
    checks = {
        "uneven batches": _equal(_fit),
        "several steps in a call": _equal(_fit_in_calls),
        "sample weights and clipped gradients": _equal(_weighted),
        "masks and sparse gradients": _equal(_masked),
        "a train_step of the user's": _equal(_own_step),
        "half precision": _equal(_loss_scaled),
        "steps that callbacks see": _steps_are_told,
        "pipelines of tf.data": _pipelines_are_recognized,
    }
    if name == "keras":
        # tf_keras averages moving statistics when they are read, and has another way to resume.
        checks |= {"BatchNormalization": _statistics_are_equal, "a resumed fit": _resumes}
    return checks


def _equal(train: Callable[[ModuleType, Any], Found]) -> Check:
    def check(library: ModuleType, one: Any, two: Any) -> str | None:
        expected, found = train(library, one), train(library, two)
        for name, value in expected.items():
            wanted, got = np.asarray(value), np.asarray(found[name])
            if wanted.shape != got.shape:
                return f"{name} of 2 replicas has shape {got.shape}, of one device {wanted.shape}"
            if not np.isfinite(got).all():
                return f"{name} of 2 replicas is not finite"
            if (difference := float(np.abs(wanted - got).max(initial=0.0))) > _TOLERANCE:
                return f"{name} of 2 replicas is {difference:.1e} from that of one device"
        return None

    return check


def _data(*parts: np.ndarray) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(parts).batch(_BATCH)


def _examples() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(_COUNT, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def _dense(library: ModuleType, *layers: Any) -> Any:
    # Weights that no generator has to give the same twice.
    sizes = [library.layers.Dense(3, "tanh", kernel_initializer=_ramp(library, 4, 3)), *layers]
    return library.Sequential(
        [library.Input((4,)), *sizes, library.layers.Dense(1, kernel_initializer="ones")]
    )


def _ramp(library: ModuleType, rows: int, columns: int) -> Any:
    return library.initializers.Constant(np.linspace(-0.5, 0.5, rows * columns).reshape(rows, columns))


def _weights(model: Any) -> np.ndarray:
    return np.concatenate([np.ravel(one) for one in model.get_weights()])


def _fit(library: ModuleType, strategy: Any, steps: int = 1) -> Found:
    x, y = _examples()
    with strategy.scope():
        model = _dense(library)
        model.compile(
            library.optimizers.SGD(0.1), "mse", metrics=["mae"], steps_per_execution=steps, jit_compile=False
        )
    history = model.fit(_data(x, y), epochs=2, verbose=0).history
    loss, error = model.evaluate(_data(x, y), verbose=0)
    return {
        "the weights": _weights(model),
        "the history": [history["loss"], history["mae"]],
        "the evaluation": [loss, error],
        "the prediction": model.predict(x, batch_size=_BATCH, verbose=0),
    }


def _fit_in_calls(library: ModuleType, strategy: Any) -> Found:
    return _fit(library, strategy, steps=3 if strategy.num_replicas_in_sync > 1 else 1)


def _weighted(library: ModuleType, strategy: Any) -> Found:
    x, y = _examples()
    with strategy.scope():
        model = _dense(library, library.layers.ActivityRegularization(l2=0.01))
        model.compile(library.optimizers.Adam(0.05, clipnorm=0.1), "mse", jit_compile=False)
    weights = np.linspace(0.0, 2.0, _COUNT).astype("float32")
    model.fit(_data(x, y, weights), epochs=2, verbose=0)
    return {"the weights": _weights(model)}


def _masked(library: ModuleType, strategy: Any) -> Found:
    words = np.arange(_COUNT * 3).reshape(_COUNT, 3) % 7
    with strategy.scope():
        embedding = library.layers.Embedding(
            7, 2, mask_zero=True, embeddings_initializer=_ramp(library, 7, 2)
        )
        dense = library.layers.Dense(1, kernel_initializer="ones")
        model = library.Sequential([library.Input((3,), dtype="int32"), embedding, dense])
        model.compile(library.optimizers.Adam(0.05), "mse", jit_compile=False)
    model.fit(_data(words.astype("int32"), words[..., None].astype("float32")), epochs=2, verbose=0)
    return {"the weights": _weights(model)}


def _own_step(library: ModuleType, strategy: Any) -> Found:
    class Model(library.Model):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = _dense(library)
            self.mean = library.metrics.Mean("error")

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.inner(inputs)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                error = tf.reduce_mean(tf.square(self.inner(x, training=True) - y))
            variables = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(error, variables), variables, strict=True))
            self.mean.update_state(error)
            return {"error": self.mean.result()}

    x, y = _examples()
    with strategy.scope():
        model = Model()
        model.compile(library.optimizers.SGD(0.1), jit_compile=False)
    history = model.fit(_data(x, y), epochs=2, verbose=0).history
    return {"the weights": _weights(model), "the history": history["error"]}


def _loss_scaled(library: ModuleType, strategy: Any) -> Found:
    x, y = _examples()
    with strategy.scope():
        model = _dense(library)
        scaled = getattr(library.optimizers, "LossScaleOptimizer", None) or (
            library.mixed_precision.LossScaleOptimizer
        )
        model.compile(scaled(library.optimizers.SGD(0.1)), "mse", jit_compile=False)
    model.fit(_data(x, y), epochs=2, verbose=0)
    return {"the weights": _weights(model)}


def _statistics_are_equal(library: ModuleType, one: Any, two: Any) -> str | None:
    del one
    x, y = _examples()
    with two.scope():
        layer = library.layers.BatchNormalization()
        model = _dense(library, layer)
        model.compile(library.optimizers.SGD(0.1), "mse", jit_compile=False)
    model.fit(_data(x, y), epochs=2, verbose=0)
    variable = layer.moving_variance
    if hasattr(variable, "value") and isinstance(variable.value, tf.distribute.DistributedValues):
        variable = variable.value
    first, second = (np.asarray(copy) for copy in two.experimental_local_results(variable))
    if not np.isfinite(first).all() or np.abs(first - second).max() > _TOLERANCE:
        return "the moving statistics of 2 replicas differ at the end of an epoch"
    return None


def _steps_are_told(library: ModuleType, one: Any, two: Any) -> str | None:
    del one
    seen: list[int] = []

    class Steps(library.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append(int(batch))

    x, y = _examples()
    with two.scope():
        model = _dense(library)
        model.compile("sgd", "mse", steps_per_execution=2, jit_compile=False)
    model.fit(_data(x, y), epochs=1, callbacks=[Steps()], verbose=0)
    return None if seen == [1, 3, 4] else f"5 steps in calls of 2 end with {seen}, not [1, 3, 4]"


def _resumes(library: ModuleType, one: Any, two: Any) -> str | None:
    del one
    epochs: list[int] = []

    class Later(library.callbacks.Callback):  # type: ignore[name-defined]
        def on_train_begin(self, logs: Any = None) -> None:
            self.model._initial_epoch = 2

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            epochs.append(epoch)

    x, y = _examples()
    with two.scope():
        model = _dense(library)
        model.compile("sgd", "mse", jit_compile=False)
    model.fit(_data(x, y), epochs=3, callbacks=[Later()], verbose=0)
    return None if epochs == [2] else f"a fit that resumes in epoch 2 of 3 trains epochs {epochs}"


def _pipelines_are_recognized(library: ModuleType, one: Any, two: Any) -> str | None:
    del library, one, two
    numbers = tf.data.Dataset.range(8)
    made = {
        "map": numbers.map(lambda one: one),
        "batch": numbers.batch(2),
        "repeat": numbers.repeat(2),
        "take": numbers.take(2),
        "skip": numbers.skip(2),
        "prefetch": numbers.prefetch(1),
    }
    found = {name: tf_private.transformation_of(dataset) for name, dataset in made.items()}
    unknown = [name for name, kind in found.items() if kind is None or kind.value != name]
    if unknown:
        return f"raydist does not recognize {', '.join(unknown)} of a dataset"
    if not tf_private.is_out_of_order(numbers.map(lambda one: one, 2, deterministic=False)):
        return "raydist does not see that a dataset is out of order"
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
