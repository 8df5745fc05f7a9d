"""Computes with each type of TensorFlow's, in a task or in plain Keras."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import tensorflow as tf

keras = tf.keras

ROWS, SIZE = 12, 5  # the replicas have parts of other sizes, and the last batch is smaller


def run_cells(ctx: Any, *, cells: list[tuple[str, list[str]]]) -> dict[str, Any]:
    """Returns what each place shows of some types, with the types of what it shows; or its error."""
    found: dict[str, Any] = {}
    for place, dtypes in cells:
        name = f"{place} {' '.join(dtypes)}"
        try:
            found[name] = {name: _as_json(one) for name, one in _PLACES[place](ctx, dtypes).items()}
        except Exception as error:
            found[name] = {"error": type(error).__name__, "trace": traceback.format_exc()[-1500:]}
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
    values = tf.convert_to_tensor(values)
    if dtype == "string":
        letters = tf.strings.as_string(tf.cast(values, tf.int32))
        return tf.strings.join([letters, tf.constant(b"\x00\xff "), letters])
    if dtype.startswith(("qint", "quint")):
        return tf.bitcast(tf.cast(values, dtype[1:]), dtype)
    return tf.cast(values, dtype)


def _as_floats(tensor: Any) -> Any:
    if tensor.dtype == tf.string:
        return tf.cast(tf.strings.length(tensor), tf.float32)
    if tensor.dtype.is_quantized:
        return tf.cast(tf.bitcast(tensor, tensor.dtype.name[1:]), tf.float32)
    return tf.cast(tensor, tf.float32)


def _numbers(rows: int = ROWS) -> np.ndarray:
    return np.arange(rows, dtype="float32")[:, None] % 5


def _dataset(x: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices((x, _numbers())).batch(SIZE)


def _compiled(ctx: Any, outputs_of: Any, *, dtypes: Any = ("float32",), metrics: Any = lambda: []) -> Any:
    """Returns a compiled model of layers of the user's, with an input of each type."""
    with ctx.strategy.scope():
        inputs = {one: keras.Input((1,), dtype=one, name=f"of_{one}") for one in dtypes}
        # A name of its own: tf_keras derives one from the class, and has it again in each cell.
        outputs = keras.layers.Dense(1, kernel_initializer="ones")(outputs_of(inputs))
        model = keras.Model(inputs, outputs)
        model.compile(keras.optimizers.SGD(0.01), "mse", metrics=metrics())
    return model


def _of_input(ctx: Any, dtypes: list[str]) -> dict[str, Any]:
    class Floats(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            return tf.ensure_shape(_as_floats(inputs), [None, 1])

        def compute_output_spec(self, inputs: Any) -> Any:
            return keras.KerasTensor(inputs.shape, "float32")

    def joined(inputs: dict[str, Any]) -> Any:
        floats = [
            (Floats(dtype=None, autocast=False) if _is_new() else Floats())(one) for one in inputs.values()
        ]
        return keras.layers.Concatenate()(floats) if len(floats) > 1 else floats[0]

    x = {one: _of_type(_numbers(), one) for one in dtypes}
    model = _compiled(ctx, joined, dtypes=dtypes)
    data = _dataset(x)
    return {
        "fit": model.fit(data, verbose=0, shuffle=False).history["loss"],
        "evaluate": model.evaluate(data, verbose=0),
        "predict": model.predict(data.map(lambda x, y: x), verbose=0),
        "by hand": model.predict_on_batch(x),
    }


def _of_output(ctx: Any, dtypes: list[str]) -> dict[str, Any]:
    def output(inputs: Any, dtype: str) -> Any:
        if dtype == "ragged":
            lengths = tf.cast(inputs[:, 0], tf.int32)
            return tf.RaggedTensor.from_row_lengths(tf.repeat(inputs[:, 0], lengths), lengths)
        if dtype == "sparse":
            return tf.sparse.from_dense(inputs * tf.constant([[1.0, 0.0, 2.0]]))
        return _of_type(inputs, dtype)

    class Cast(keras.Model):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            return {one: output(inputs, one) for one in dtypes}

    with ctx.strategy.scope():
        model = Cast()
    x = _numbers()
    data = tf.data.Dataset.from_tensor_slices(x).batch(SIZE)
    found = {"predict": model.predict(data, verbose=0), "by hand": model.predict_on_batch(x)}
    return {
        f"{call} {dtype}{part}": value
        for call, outputs in found.items()
        for dtype, one in outputs.items()
        for part, value in _parts(one)
    }


def _parts(output: Any) -> list[tuple[str, Any]]:
    if isinstance(output, tf.RaggedTensor):
        return [(" values", output.flat_values), (" lengths", output.row_lengths())]
    return [("", tf.sparse.to_dense(output) if isinstance(output, tf.SparseTensor) else output)]


def _of_variable(ctx: Any, dtypes: list[str]) -> dict[str, Any]:
    class Keeps(tf.keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, input_shape: Any) -> None:
            for one in dtypes:
                value = _of_type(np.full([1], 2, "float32"), one)
                setattr(self, f"of_{one}", tf.Variable(value, trainable=tf.as_dtype(one).is_floating))

        def call(self, inputs: Any) -> Any:
            outputs = inputs
            for kept in map(self.kept, dtypes):
                outputs = outputs * tf.stop_gradient(_as_floats(kept)) / 2.0
                outputs += tf.cast(kept, inputs.dtype) if kept.dtype.is_floating else 0.0
            return outputs

        def kept(self, dtype: str) -> Any:
            return getattr(self, f"of_{dtype}")

    model = _compiled(ctx, lambda inputs: Keeps()(*inputs.values()))
    data = _dataset({"float32": _numbers()})
    layer = next(one for one in model.layers if isinstance(one, Keeps))
    shown = {"fit": model.fit(data, verbose=0).history["loss"], "evaluate": model.evaluate(data, verbose=0)}
    return {**shown, **{one: layer.kept(one).numpy() for one in dtypes}}


def _of_metric(ctx: Any, dtypes: list[str]) -> dict[str, Any]:
    class Counts(tf.keras.metrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self, dtype: str) -> None:
            super().__init__(name=f"of_{dtype}", dtype=dtype)
            self.count = self.add_weight(name="count", initializer="zeros", dtype=dtype)

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            rows = tf.reduce_sum(tf.ones_like(y_true[:, 0]))
            self.count.assign_add(tf.cast(rows, self.count.dtype))

        def result(self) -> Any:
            return tf.convert_to_tensor(self.count)

    def linear(inputs: dict[str, Any]) -> Any:
        return tf.keras.layers.Activation("linear")(*inputs.values())

    model = _compiled(ctx, linear, metrics=lambda: [Counts(one) for one in dtypes])
    data = _dataset({"float32": _numbers()})
    history = model.fit(data, verbose=0).history
    return {**{one: history[f"of_{one}"] for one in dtypes}, "evaluate": model.evaluate(data, verbose=0)}


def _is_new() -> bool:
    return not tf.keras.__name__.startswith("tf_keras")


_PLACES = {"input": _of_input, "output": _of_output, "variable": _of_variable, "metric": _of_metric}
