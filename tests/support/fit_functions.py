"""Train functions that use the keywords of `ctx.fit`, and `ctx.evaluate` and `ctx.predict`."""

from __future__ import annotations

import functools
import itertools
import os
import time
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.training.keras_patches.keras3 import adapter
from tests.support import given_functions
from tests.support.given_functions import STEPS, py_dataset
from tests.support.in_tasks import flat, refusal
from tests.support.inside import notes_of, progress_of
from tests.support.train_functions import examples, made

keras = tf.keras

COUNT = 50  # no multiple of 16: the last batch is uneven


def data_as(way: str) -> Any:
    import raydist.data

    x, y = examples(COUNT)
    if way == "batches":
        return raydist.data.from_arrays((x, y)).batches(global_batch_size=16, shuffle=False)
    if way == "function":
        return lambda: tf.data.Dataset.from_tensor_slices(examples(COUNT)).batch(16)
    if way == "arrays":
        return x, y
    rows = tf.data.Dataset.from_tensor_slices((x, y))
    return (rows.shuffle(COUNT, seed=5) if way == "shuffled" else rows).batch(16)


_model = functools.partial(made, optimizer="sgd", metrics=("accuracy",))


def weighted_classes(ctx: Any, *, way: str) -> dict[str, Any]:
    model = _model(ctx)
    ctx.fit(model, data_as(way), epochs=2, steps_per_epoch=4, class_weight={0: 1.0, 1: 5.0, 2: 0.2})
    return {"weights": flat(model)}


def later_epochs(ctx: Any, *, way: str, epochs: int = 6, call: str = "ctx.fit") -> dict[str, Any]:
    """Trains from epoch 2 on, and validates every second one on some of the steps."""
    model, seen = _model(ctx), []
    fit = functools.partial(ctx.fit, model) if call == "ctx.fit" else model.fit
    own = ctx.callbacks() if call == "ctx.callbacks" else ()
    watch = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    history = fit(
        data_as(way),
        epochs=epochs,
        callbacks=[[watch], *own],  # Keras takes them nested
        steps_per_epoch=4,
        initial_epoch=2,
        validation_data=data_as(way),
        validation_steps=2,
        validation_freq=2,
        verbose=0,
    )
    weights, step = flat(model), ctx.step
    if own and ctx.attempt:  # callbacks may serve several fits
        model.fit(data_as(way), initial_epoch=1, epochs=2, callbacks=own, verbose=0)
    return {
        "weights": weights,
        "epochs": history.epoch,
        "seen": seen,
        "step": step,
        "steps_of_another": ctx.step - step,
        "validations": np.array(history.history["val_loss"]),
    }


def evaluated(ctx: Any, *, way: str) -> dict[str, Any]:
    model = _model(ctx)
    whole = ctx.evaluate(model, data_as(way))
    part = ctx.evaluate(model, data_as(way), steps=2)
    beyond = ctx.evaluate(model, data_as(way), steps=6)  # it has 4
    x, y = examples(COUNT)
    return {
        "whole": whole,
        "part": part,
        "beyond": beyond,
        "labels beside": ctx.evaluate(model, x, y, sample_weight=np.ones(COUNT), batch_size=24),
        "refused": [
            refusal(ctx.evaluate, model, data_as(way), y=y, batch_size=5),
            refusal(ctx.predict, model, data_as(way), batch_size=5),
            refusal(ctx.predict, model, x, batch_size=0),
        ],
        "predicted": ctx.predict(model, x),
        "predicted in fives": ctx.predict(model, x, batch_size=5),
        **_evaluated_by_keras(ctx, model),
    }


def evaluated_of_python(ctx: Any) -> dict[str, Any]:
    """Evaluates a PyDataset and generators, which parameter_server refuses."""
    model = _model(ctx)
    if ctx.coordinator is not None:
        return {"py dataset": refusal(ctx.evaluate, model, py_dataset())}
    batches = [py_dataset()[number] for number in range(STEPS)]
    return {
        "whole": ctx.evaluate(model, data_as("arrays")),
        "part": ctx.evaluate(model, data_as("batches"), steps=2),
        "py dataset": ctx.evaluate(model, py_dataset()),
        "py dataset, part": ctx.evaluate(model, py_dataset(), steps=2),
        "generator": ctx.evaluate(model, iter(batches)),
        "generator, part": ctx.evaluate(model, itertools.cycle(batches), steps=2),
        "padded": ctx.evaluate(given_functions.made(ctx, "padded"), iter(given_functions.padded())),
        "padded py dataset": ctx.evaluate(
            given_functions.made(ctx, "padded"), given_functions.padded_py_dataset()
        ),
        "number": refusal(ctx.evaluate, model, 3),
        "empty": refusal(ctx.evaluate, model, iter(())),
    }


def _evaluated_by_keras(ctx: Any, model: Any) -> dict[str, Any]:
    if ctx.coordinator is not None:
        return {}
    x, y = examples(COUNT)
    values = model.evaluate(x, y, batch_size=16, steps=6, verbose=0, return_dict=True)
    return {"by_keras": values}


def metric_of_classes(ctx: Any) -> dict[str, Any]:
    """Trains and evaluates with a metric that returns one value for each class."""
    x, y = examples(COUNT)
    y = np.eye(3, dtype="float32")[y]
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3, activation="softmax")])
        metrics = [keras.metrics.F1Score(average=None)]
        model.compile(keras.optimizers.SGD(0.5), "categorical_crossentropy", metrics=metrics)
    history = ctx.fit(
        model, x, y, batch_size=16, shuffle=False, epochs=2, validation_data=(x, y), verbose=0
    ).history
    reported = dict(progress_of(ctx).status().metrics)
    ctx.report({"matrix": np.arange(4).reshape(2, 2), "large": tf.zeros([101])})
    evaluated = ctx.evaluate(model, (x, y))
    status = progress_of(ctx).status()
    return {
        "evaluated": evaluated["f1_score"],
        "by_keras": model.evaluate(x, y, batch_size=16, steps=4, verbose=0, return_dict=True)["f1_score"]
        if ctx.coordinator is None
        else evaluated["f1_score"],
        "validated": np.array(history["val_f1_score"]),
        "reported": reported,
        "matrix": dict(status.metrics),
        "notes": list(status.notes),
    }


def validated_beyond_the_end(ctx: Any, *, way: str) -> dict[str, Any]:
    """Validates on more steps than there are; returns the validation's loss, and that of the whole data."""
    model = _model(ctx)
    history = ctx.fit(
        model, data_as("batches"), epochs=1, validation_data=data_as(way), validation_steps=9, verbose=0
    )
    return {
        "validated": history.history["val_loss"][0],
        "whole": ctx.evaluate(model, data_as(way))["loss"],
        "notes": notes_of(ctx),
    }


def predicted(ctx: Any) -> dict[str, Any]:
    import raydist.data

    model = _model(ctx)
    x, y = examples(COUNT)
    by_data = ctx.predict(model, tf.data.Dataset.from_tensor_slices(x).batch(16))
    pairs = raydist.data.from_arrays((x, y)).batches(global_batch_size=16, shuffle=False)
    inputs = raydist.data.from_arrays(x).batches(global_batch_size=16, epochs=2, shuffle=False)
    for same in (x, x.astype("float64"), tf.constant(x), [x], pairs, pairs.dataset(), inputs):
        np.testing.assert_allclose(ctx.predict(model, same), by_data, atol=1e-6)
    np.testing.assert_allclose(ctx.predict(model, pairs, steps=2), by_data[:32], atol=1e-6)
    shuffled = ctx.predict(model, raydist.data.from_arrays(x).batches(global_batch_size=16))
    np.testing.assert_allclose(np.sort(shuffled, axis=0), np.sort(by_data, axis=0), atol=1e-6)
    assert any("that are shuffled" in note for note in notes_of(ctx))
    np.testing.assert_allclose(
        ctx.predict(_of_two_inputs(ctx), {"left": x, "right": tf.constant(x)}), 2 * x, atol=1e-6
    )
    np.testing.assert_allclose(ctx.predict(_of_two_inputs(ctx), [x, x]), 2 * x, atol=1e-6)
    np.testing.assert_array_equal(ctx.predict(_of_two_rows(ctx), x), x.reshape(-1, 3))
    mistakes = {
        "no rows": x[:0],
        "no batches": tf.data.Dataset.from_tensor_slices(x).batch(16).take(0),
        "context": lambda input_context: data_as("dataset"),
        "number": 3,
    }
    refused = {name: refusal(ctx.predict, model, one) for name, one in mistakes.items()}
    if ctx.coordinator is None:
        for plain in (model.fit, model.evaluate, model.predict):
            refused[f"model.{plain.__name__}"] = refusal(
                lambda _, data, plain=plain: plain(data), model, pairs
            )
    return {"outputs": by_data, **refused}


def _of_two_inputs(ctx: Any) -> Any:
    with ctx.strategy.scope():
        inputs = [keras.layers.Input((6,), name=name) for name in ("left", "right")]
        return keras.Model(inputs, keras.layers.Add()(inputs))


def _of_two_rows(ctx: Any) -> Any:
    """Makes two rows of each example."""
    with ctx.strategy.scope():
        layer = keras.layers.Lambda(lambda one: tf.reshape(one, [-1, 3]), output_shape=(3,))
        return keras.Sequential([keras.layers.Input((6,)), layer])


def weighted_by_keras(ctx: Any) -> dict[str, Any]:
    model = _model(ctx)
    weights = {0: 1.0, 1: 5.0, 2: 0.2}
    model.fit(data_as("dataset"), epochs=2, steps_per_epoch=4, class_weight=weights, verbose=0)
    return {"weights": flat(model)}


def classes_left_out(ctx: Any) -> dict[str, Any]:
    """Trains with weights for some of the classes: through Keras with arrays, through ctx.fit in two ways."""
    x, y = examples(COUNT)
    found = {}
    for name, weight in {"first": {0: 1.0, 1: 2.0}, "one": {1: 5.0}}.items():
        model = _model(ctx)
        model.fit(x, y, batch_size=16, shuffle=False, class_weight=weight, verbose=0)
        found[f"{name} by Keras"] = flat(model)
        for way in ("dataset", "batches"):
            model = _model(ctx)
            ctx.fit(model, data_as(way), epochs=1, class_weight=weight, verbose=0)
            found[f"{name} of {way}"] = flat(model)
    return found


def divided_classes(ctx: Any) -> dict[str, Any]:
    """Trains with class_weight on data that a map makes, with labels of each form."""
    x, y = examples(COUNT)
    weights = {}
    forms = {"numbers": y, "column": y[:, None], "one-hot": np.eye(3, dtype="float32")[y]}
    for name, labels in forms.items():
        model = _model(ctx)
        if name == "one-hot":
            model.compile("sgd", tf.keras.losses.CategoricalCrossentropy(from_logits=True))
        data = tf.data.Dataset.from_tensor_slices((x, labels)).map(lambda a, b: (2 * a, b)).batch(16)
        ctx.fit(model, data, epochs=1, class_weight={0: 1.0, 1: 5.0, 2: 0.2})
        weights[name] = flat(model)
    return {**weights, "notes": notes_of(ctx)}


def weights_of_labels(ctx: Any) -> dict[str, Any]:
    """Returns the weights of labels of every form, by raydist's function and by Keras's for arrays."""
    from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

    numbers = examples(COUNT)[1]
    forms = {
        "int64": numbers,
        "uint8": numbers.astype("uint8"),
        "float": numbers.astype("float32"),
        "bool": numbers > 0,
        "column": numbers[:, None],
        "one-hot": np.eye(3, dtype="float32")[numbers],
    }
    found = {}
    for name, labels in forms.items():
        for weight in ({0: 1.0, 1: 2.0}, {1: 5.0}, {2: 0.2, 0: 7.0}, {-1: 3.0, 4: 2.0}):
            data = tf.data.Dataset.from_tensor_slices((labels, labels)).batch(16)
            parts = [part.numpy() for _, _, part in data.map(adapter.of_batches(weight))]
            key = f"{name} {weight}"
            found[f"{key} found"] = np.concatenate(parts)
            found[f"{key} expected"] = class_weight_to_sample_weights(labels, weight)
    return found


def components_of_other_sizes(ctx: Any) -> dict[str, Any]:
    """Batches of graphs: as many labels as graphs, and other numbers of nodes."""
    nodes, labels = np.ones((20, 6), "float32"), np.zeros((4, 3), "float32")
    types = tf.TensorSpec([None, 6]), tf.TensorSpec([None, 3])
    data = {
        "known": tf.data.Dataset.from_tensors((nodes, labels)).repeat(3),
        "unknown": tf.data.Dataset.from_generator(
            lambda: iter([(nodes, labels)] * 3), output_signature=types
        ),
    }
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((6,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
    return {name: refusal(ctx.fit, model, one, epochs=1) for name, one in data.items()}


def without_a_fixed_order(ctx: Any, *, is_fixed: bool) -> dict[str, Any]:
    """Trains on data whose elements take other times in each process, and come as they are done."""

    def slow(index: Any) -> Any:
        time.sleep(0.02 * (hash((os.getpid(), int(index))) % 3))
        return index

    def read(index: Any) -> Any:
        # As many examples as indices, of which each has its own values.
        value = tf.cast(tf.ensure_shape(tf.numpy_function(slow, [index], tf.int64), []), tf.float32)
        return tf.fill([6], value / 40.0), tf.cast(value, tf.int64) % 3

    # With nothing in between, TensorFlow makes one operation of map and batch, which keeps the order of rows.
    data = tf.data.Dataset.range(40).map(read, num_parallel_calls=4).prefetch(1).batch(8)
    options = tf.data.Options()
    options.deterministic = is_fixed
    model = _model(ctx)
    ctx.fit(model, data.with_options(options), epochs=2)
    return {"weights": flat(model)}
