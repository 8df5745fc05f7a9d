"""Computes cells of the table of sizes and calls, in a task or in plain Keras."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import descend, flat
from tests.support.inside import forget_notes, notes_of
from tests.tables.cells import IN_MEMORY, Cell

keras = tf.keras

WIDTH = 3
STEPS = 3  # of data without an end


def run_cells(ctx: Any, *, cells: list[list[Any]]) -> dict[str, Any]:
    """Returns of each cell, given as its values, what it shows and what is noted of it, or its error."""
    models = _Models(ctx)
    found = {}
    for values in cells:
        cell = Cell(*values)
        is_plain = not hasattr(ctx, "_run")
        if not is_plain:
            forget_notes(ctx)
        try:
            shown = _CALLS[cell.call](ctx, models.of(cell.kind), cell)
        except Exception:
            found[cell.name] = {"error": traceback.format_exc()[-2000:]}
            continue
        notes = [] if is_plain else notes_of(ctx)
        found[cell.name] = {"shown": {name: np.asarray(one).tolist() for name, one in shown.items()}}
        found[cell.name]["notes"] = notes
    return found


class _Models:
    """A compiled model for each structure of inputs, with its first weights whenever it is asked for."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self._made: dict[str, tuple[Any, list[np.ndarray]]] = {}

    def of(self, kind: str) -> Any:
        key = kind if kind in ("dict", "list", "ragged", "sparse") else "array"
        if key not in self._made:
            with self._ctx.strategy.scope():
                model = _model(key)
            weights = [np.linspace(-1.0, 1.0, one.size).reshape(one.shape) for one in model.get_weights()]
            self._made[key] = model, weights
        model, weights = self._made[key]
        model.set_weights(weights)
        return model


def _model(kind: str) -> Any:
    class OfComposites(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.last = keras.layers.Dense(2)

        def call(self, inputs: Any) -> Any:
            if isinstance(inputs, tf.RaggedTensor):
                inputs = inputs.to_tensor(shape=[None, WIDTH])
            elif isinstance(inputs, tf.SparseTensor):
                inputs = tf.sparse.to_dense(inputs)
            return self.last(tf.ensure_shape(inputs, [None, WIDTH]))

    if kind in ("ragged", "sparse"):
        model = OfComposites()
        model(tf.zeros([1, WIDTH]))
    else:
        inputs = [keras.Input((WIDTH,), name="left"), keras.Input((1,), name="right")]
        given: Any = {one.name: one for one in inputs} if kind == "dict" else inputs
        given = given if kind in ("dict", "list") else inputs[0]
        joined = keras.layers.Concatenate()(inputs) if kind in ("dict", "list") else inputs[0]
        model = keras.Model(given, keras.layers.Dense(2)(joined))
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


def _arrays(kind: str, rows: int) -> tuple[Any, Any]:
    """Returns the inputs and the labels."""
    rng = np.random.default_rng(rows)
    left, right = rng.normal(size=(rows, WIDTH)).astype("float32"), np.arange(rows, dtype="float32")[:, None]
    y = rng.normal(size=(rows, 2)).astype("float32")
    right = right / rows
    if kind == "ragged":
        return tf.RaggedTensor.from_tensor(left, lengths=[1 + row % WIDTH for row in range(rows)]), y
    if kind == "sparse":
        return tf.sparse.from_dense(np.where(left > 0, left, 0)), y
    structures: dict[str, Any] = {"dict": {"left": left, "right": right}, "list": [left, right]}
    if kind == "tensor":
        return tf.constant(left), tf.constant(y)
    return structures.get(kind, left), y


def _data(cell: Cell, *, with_labels: bool, is_plain: bool) -> Any:
    """Returns what a call takes as its data: a structure of arrays, or batches."""
    x, y = _arrays(cell.kind, cell.rows)
    whole = (x, y) if with_labels else x
    if cell.kind in IN_MEMORY:
        return whole
    if cell.kind == "batches":
        import raydist.data

        recipe = raydist.data.from_arrays(whole).batches(global_batch_size=cell.size, shuffle=False)
        return recipe if not is_plain else tf.data.Dataset.from_tensor_slices(whole).batch(cell.size)
    if cell.kind == "py_dataset":
        return _py_dataset(x, y if with_labels else None, cell.size)
    if cell.kind == "generator":
        return _batches_in_python(x, y if with_labels else None, cell.size)
    data = tf.data.Dataset.from_tensor_slices(whole)
    if cell.kind == "static":
        data = data.take(cell.rows // cell.size * cell.size)
    data = data.batch(cell.size, drop_remainder=cell.kind in ("static", "drop_remainder"))
    if cell.kind == "unknown":
        return data.filter(lambda *batch: True)
    return data.repeat() if cell.kind == "infinite" else data


def _py_dataset(x: Any, y: Any, size: int) -> Any:
    class Batches(getattr(keras.utils, "PyDataset", keras.utils.Sequence)):  # type: ignore[misc]
        def __len__(self) -> int:
            return -(-len(x) // size)

        def __getitem__(self, index: int) -> Any:
            rows = slice(index * size, (index + 1) * size)
            return (x[rows],) if y is None else (x[rows], y[rows])

    return Batches()


def _batches_in_python(x: Any, y: Any, size: int) -> Any:
    for start in range(0, len(x), size):
        rows = slice(start, start + size)
        yield (x[rows],) if y is None else (x[rows], y[rows])


def _options(cell: Cell) -> dict[str, Any]:
    """Returns the size of a batch and the number of steps, where a call takes them."""
    if cell.kind == "infinite":
        return {"steps": STEPS}
    return {"batch_size": cell.size} if cell.kind in IN_MEMORY and cell.batch != "default" else {}


def _predict(ctx: Any, model: Any, cell: Cell) -> dict[str, Any]:
    data = _data(cell, with_labels=False, is_plain=True)
    return {"outputs": model.predict(data, verbose=0, **_options(cell))}


def _evaluate(ctx: Any, model: Any, cell: Cell) -> dict[str, Any]:
    data = _data(cell, with_labels=True, is_plain=True)
    given = data if cell.kind in IN_MEMORY else (data,)
    logs: dict[str, Any] = model.evaluate(*given, verbose=0, return_dict=True, **_options(cell))
    return logs


def _fit(ctx: Any, model: Any, cell: Cell, *, of_context: bool = False) -> dict[str, Any]:
    data = _data(cell, with_labels=True, is_plain=not of_context or not hasattr(ctx, "_run"))
    given = data if cell.kind in IN_MEMORY else (data,)
    options: dict[str, Any] = {"epochs": 1 if cell.kind == "generator" else 2, **_options(cell)}
    # Keras shuffles batches of Python too, and ctx.fit in another order, which it notes.
    if cell.kind in IN_MEMORY or (cell.kind == "py_dataset" and cell.rows > cell.size):
        options["shuffle"] = False
    if "steps" in options:
        options["steps_per_epoch"] = options.pop("steps")
    fit = functools.partial(ctx.fit, model) if of_context else functools.partial(model.fit, verbose=0)
    history = fit(*given, **options).history
    return {**history, "weights": flat(model)}


def _on_batch(ctx: Any, model: Any, cell: Cell) -> dict[str, Any]:
    batch = Cell(cell.call, cell.kind, min(cell.rows, cell.size), cell.batch)
    x, y = _arrays(batch.kind, batch.rows)
    if cell.call == "predict_on_batch":
        return {"outputs": model.predict_on_batch(x)}
    model.reset_metrics()
    logs = getattr(model, cell.call)(x, y, return_dict=True)
    return {**{name: float(one) for name, one in logs.items()}, "weights": flat(model)}


def _predict_of_context(ctx: Any, model: Any, cell: Cell) -> dict[str, Any]:
    data = _data(cell, with_labels=False, is_plain=not hasattr(ctx, "_run"))
    return {"outputs": ctx.predict(model, data, **_options(cell))}


def _evaluate_of_context(ctx: Any, model: Any, cell: Cell) -> dict[str, Any]:
    data = _data(cell, with_labels=True, is_plain=not hasattr(ctx, "_run"))
    return dict(ctx.evaluate(model, data, **_options(cell)))


def _train_steps(ctx: Any, model: Any, cell: Cell) -> dict[str, Any]:
    def step(batch: Any) -> dict[str, Any]:
        x, y = batch
        loss = descend(model, model.optimizer, lambda: tf.reduce_mean(tf.square(model(x, training=True) - y)))
        return {"loss": loss}

    data = _data(cell, with_labels=True, is_plain=not hasattr(ctx, "_run"))
    logs = ctx.train_steps(step, data, num_steps=STEPS, steps_per_call=STEPS)
    return {**logs, "weights": flat(model)}


_CALLS: dict[str, Callable[..., dict[str, Any]]] = {
    "predict": _predict,
    "evaluate": _evaluate,
    "fit": _fit,
    **dict.fromkeys(("predict_on_batch", "test_on_batch", "train_on_batch"), _on_batch),
    "ctx.predict": _predict_of_context,
    "ctx.evaluate": _evaluate_of_context,
    "ctx.fit": functools.partial(_fit, of_context=True),
    "ctx.train_steps": _train_steps,
}
