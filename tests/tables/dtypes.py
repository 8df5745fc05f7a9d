"""Computes with each type of TensorFlow's, in a task or in plain Keras. Imports TensorFlow inside."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np

ROWS, SIZE = 12, 5  # the replicas have parts of other sizes, and the last batch is smaller


def run_cells(ctx: Any, *, cells: list[tuple[str, str]]) -> dict[str, Any]:
    """Returns what each place and type shows, with the types of what it shows; or its error."""
    found: dict[str, Any] = {}
    for place, dtype in cells:
        try:
            shown = {name: _as_json(one) for name, one in _PLACES[place](ctx, dtype).items()}
        except Exception as error:
            found[f"{place} {dtype}"] = {
                "error": type(error).__name__,
                "trace": traceback.format_exc()[-1500:],
            }
            continue
        found[f"{place} {dtype}"] = shown
    return found


def _as_json(value: Any) -> list[Any]:
    array = np.asarray(value)
    if array.dtype.kind == "c":
        return [str(array.dtype), np.stack([array.real, array.imag], axis=-1).astype("float64").tolist()]
    if array.dtype.kind in "OSU":
        return [str(array.dtype), [one.hex() for one in array.ravel().tolist()]]
    return [str(array.dtype), array.astype("float64").tolist()]


def _of_type(values: Any, dtype: str) -> Any:
    """Returns numbers as a tensor of a type."""
    import tensorflow as tf

    values = tf.convert_to_tensor(values)
    if dtype == "string":
        letters = tf.strings.as_string(tf.cast(values, tf.int32))
        return tf.strings.join([letters, tf.constant(b"\x00\xff "), letters])
    if dtype.startswith(("qint", "quint")):
        return tf.bitcast(tf.cast(values, dtype[1:]), dtype)
    return tf.cast(values, dtype)


def _as_floats(tensor: Any) -> Any:
    import tensorflow as tf

    if tensor.dtype == tf.string:
        return tf.cast(tf.strings.length(tensor), tf.float32)
    if tensor.dtype.is_quantized:
        return tf.cast(tf.bitcast(tensor, tensor.dtype.name[1:]), tf.float32)
    return tf.cast(tensor, tf.float32)


def _numbers(rows: int = ROWS) -> np.ndarray:
    return np.arange(rows, dtype="float32")[:, None] % 5


def _dataset(x: Any) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, _numbers())).batch(SIZE)


def _model(ctx: Any, layer: Any, *, dtype: str = "float32", metrics: Any = lambda: []) -> Any:
    """Returns a compiled model of a layer of the user's, and the first weights of the last layer."""
    import tensorflow as tf

    keras = tf.keras
    with ctx.strategy.scope():
        inputs = keras.Input((1,), dtype=dtype)
        # A name of its own: tf_keras derives one from the class, and has it again in each cell.
        outputs = keras.layers.Dense(1, kernel_initializer="ones")(layer()(inputs))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=metrics())
    return model


def _of_input(ctx: Any, dtype: str) -> dict[str, Any]:
    import tensorflow as tf

    class Floats(tf.keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            return tf.ensure_shape(_as_floats(inputs), [None, 1])

        def compute_output_spec(self, inputs: Any) -> Any:
            return tf.keras.KerasTensor(inputs.shape, "float32")

    x = _of_type(_numbers(), dtype)
    model = _model(ctx, lambda: Floats(dtype=None, autocast=False) if _is_new() else Floats(), dtype=dtype)
    data = _dataset(x)
    return {
        "fit": model.fit(data, verbose=0, shuffle=False).history["loss"],
        "evaluate": model.evaluate(data, verbose=0),
        "predict": model.predict(data.map(lambda x, y: x), verbose=0),
        "by hand": model.predict_on_batch(x),
    }


def _of_output(ctx: Any, dtype: str) -> dict[str, Any]:
    import tensorflow as tf

    keras = tf.keras

    class Cast(keras.Model):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            if dtype == "ragged":
                return tf.RaggedTensor.from_row_lengths(
                    tf.repeat(inputs[:, 0], tf.cast(inputs[:, 0], tf.int32)), tf.cast(inputs[:, 0], tf.int32)
                )
            if dtype == "sparse":
                return tf.sparse.from_dense(inputs * tf.constant([[1.0, 0.0, 2.0]]))
            return _of_type(inputs, dtype)

    with ctx.strategy.scope():
        model = Cast()
    x = _numbers()
    data = tf.data.Dataset.from_tensor_slices(x).batch(SIZE)
    outputs = {"predict": model.predict(data, verbose=0), "by hand": model.predict_on_batch(x)}
    if dtype == "ragged":
        return {f"{name} {part}": value for name, one in outputs.items() for part, value in _rows(one)}
    if dtype == "sparse":
        return {name: tf.sparse.to_dense(one) for name, one in outputs.items()}
    return outputs


def _rows(ragged: Any) -> list[tuple[str, Any]]:
    return [("values", ragged.flat_values), ("lengths", ragged.row_lengths())]


def _of_variable(ctx: Any, dtype: str) -> dict[str, Any]:
    import tensorflow as tf

    class Keeps(tf.keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, input_shape: Any) -> None:
            self.kept = tf.Variable(
                _of_type(np.full([1], 2, "float32"), dtype), trainable=tf.as_dtype(dtype).is_floating
            )

        def call(self, inputs: Any) -> Any:
            return inputs * tf.stop_gradient(_as_floats(self.kept)) + (
                tf.cast(self.kept, inputs.dtype) if tf.as_dtype(dtype).is_floating else 0.0
            )

    model = _model(ctx, Keeps)
    data = _dataset(_numbers())
    kept = next(one for one in model.layers if isinstance(one, Keeps)).kept
    shown = {"fit": model.fit(data, verbose=0).history["loss"], "evaluate": model.evaluate(data, verbose=0)}
    return {**shown, "variable": kept.numpy()}


def _of_metric(ctx: Any, dtype: str) -> dict[str, Any]:
    import tensorflow as tf

    class Counts(tf.keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="counted", dtype=dtype)
            self.count = self.add_weight(name="count", initializer="zeros", dtype=dtype)

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.count.assign_add(tf.cast(tf.reduce_sum(tf.ones_like(y_true[:, 0])), dtype))

        def result(self) -> Any:
            return tf.convert_to_tensor(self.count)

    model = _model(ctx, lambda: tf.keras.layers.Activation("linear"), metrics=lambda: [Counts()])
    data = _dataset(_numbers())
    history = model.fit(data, verbose=0).history
    return {"fit": history["counted"], "evaluate": model.evaluate(data, verbose=0)}


def _is_new() -> bool:
    import tensorflow as tf

    return not tf.keras.__version__.startswith("2.")


_PLACES = {"input": _of_input, "output": _of_output, "variable": _of_variable, "metric": _of_metric}
