"""Train functions whose data come in unusual ways: by hand, without a known end, distributed already."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.in_tasks import flat
from tests.support.inside import notes_of, progress_of
from tests.support.late import LateModule
from tests.support.train_functions import batchnorm_model, dense_model, examples, made

tf = LateModule("tensorflow")

# The replicas do not divide most of them, and one has fewer examples than replicas.
SIZES = (8, 7, 5, 1, 6, 3)


def by_hand(ctx: Any) -> dict[str, Any]:
    """Calls train_on_batch, test_on_batch and predict_on_batch of plain and of custom models."""
    keras = tf.keras
    result: dict[str, Any] = {}
    x, y = examples(sum(SIZES))
    ends = np.cumsum(SIZES)
    batches = [(x[end - size : end], y[end - size : end]) for size, end in zip(SIZES, ends, strict=True)]
    weights = np.linspace(0.1, 2.0, len(x)).astype("float32")
    for way in ("plain", "sample_weight", "class_weight", "own train_step"):
        with ctx.strategy.scope():
            model = dense_model(keras, "sgd", metrics=("accuracy",))
            if way == "own train_step":
                model = _with_own_step(keras, model)
        logs = []
        for (inputs, labels), end in zip(batches, ends, strict=True):
            options: dict[str, Any] = {}
            if way == "sample_weight":
                options["sample_weight"] = weights[end - len(inputs) : end]
            if way == "class_weight":
                options["class_weight"] = {0: 0.5, 1: 1.0, 2: 2.0}
            logs.append(model.train_on_batch(inputs, labels, return_dict=True, **options))
        for name in logs[0]:
            result[f"{way}-train-{name}"] = np.array([float(one[name]) for one in logs])
        result[f"{way}-weights"] = flat(model)
        if way == "plain":
            tested = [model.test_on_batch(*batch, return_dict=True) for batch in batches]
            result["test"] = np.array([[float(one[name]) for name in sorted(one)] for one in tested])
            for index, (inputs, _) in enumerate(batches):
                result[f"predict-{index}"] = np.array(model.predict_on_batch(inputs))
            result["after by hand"] = np.array(model.fit(x, y, batch_size=8, verbose=0).history["loss"])
    return result


def _with_own_step(keras: Any, model: Any) -> Any:
    class Own(keras.Model):
        """Returns what no metric of the model has."""

        def train_step(self, data: Any) -> dict[str, Any]:
            inputs, labels = data[0], data[1]
            with tf.GradientTape() as tape:
                outputs = self(inputs, training=True)
                loss = self.compute_loss(inputs, labels, outputs)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"mean": tf.reduce_mean(outputs), "norm": tf.reduce_mean(tf.square(inputs))}

    own = Own(model.inputs, model.outputs)
    own.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return own


def by_hand_with_statistics(ctx: Any) -> dict[str, Any]:
    """Predicts and tests by hand with a model whose moving statistics differ between the replicas."""
    x, y = examples(24)
    with ctx.strategy.scope():
        model = batchnorm_model(tf.keras)
    for start in range(0, 24, 8):
        model.train_on_batch(x[start : start + 8], y[start : start + 8])
    # The same row for each replica.
    predicted = np.array(model.predict_on_batch(np.repeat(x[:1], 4, axis=0)))
    return {"predicted": predicted, "tested": np.array(model.test_on_batch(x[:8], y[:8]))}


def of_unknown_length(ctx: Any, *, count: int, steps: int) -> dict[str, Any]:
    """Trains on batches of a generator, several in a call; the last call may have fewer."""
    x, y = examples(count)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).filter(lambda *batch: True)
    model = made(ctx, "adam", steps_per_execution=steps, metrics=("accuracy",))
    before = progress_of(ctx).status().step
    history = ctx.fit(model, data, epochs=3, validation_data=data)
    return {
        "weights": flat(model),
        "loss": np.array(history.history["loss"]),
        "val_loss": np.array(history.history["val_loss"]),
        "predicted": np.array(model.predict(data.map(lambda x, y: x), verbose=0)),
        "steps": progress_of(ctx).status().step - before,
    }


def distributed(ctx: Any) -> dict[str, Any]:
    """Gives fit and evaluate a dataset that is distributed already, without a number of steps."""

    def shards(context: Any) -> Any:
        data = tf.data.Dataset.from_tensor_slices(examples(64))
        data = data.shard(context.num_input_pipelines, context.input_pipeline_id)
        return data.batch(context.get_per_replica_batch_size(16))

    model = made(ctx, "adam", metrics=("accuracy",))
    data = ctx.strategy.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(examples(64)).batch(16)
    )
    history = model.fit(data, epochs=3, verbose=0)
    result = {
        "loss": np.array(history.history["loss"]),
        "evaluated": np.array(model.evaluate(data, verbose=0)),
        "weights": flat(model),
    }
    before = progress_of(ctx).status().step
    ctx.fit(model, shards, epochs=2)
    return {**result, "steps": progress_of(ctx).status().step - before}


def compiled_by_xla(ctx: Any) -> dict[str, Any]:
    """Trains, evaluates and predicts with jit_compile=True on data of known and of unknown length.

    Then with a layer that XLA cannot compile, and returns the errors.
    """
    keras = tf.keras

    class Text(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs + tf.cast(tf.strings.length(tf.strings.as_string(inputs)), tf.float32) * 0.0

    x, y = examples(60)
    result: dict[str, Any] = {}
    known = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
    spec = (tf.TensorSpec([None, 6], tf.float32), tf.TensorSpec([None], tf.int64))
    generated = tf.data.Dataset.from_generator(lambda: iter(known.as_numpy_iterator()), output_signature=spec)
    for way, data in {"known": known, "generated": generated}.items():
        model = _jit_model(ctx, [])
        result[f"{way}-loss"] = np.array(model.fit(data, epochs=3, verbose=0).history["loss"])
        result[f"{way}-weights"] = flat(model)
        result[f"{way}-evaluated"] = np.array(model.evaluate(data, verbose=0))
        result[f"{way}-predicted"] = np.array(model.predict(data.map(lambda x, y: x), verbose=0))
        try:
            _jit_model(ctx, [Text()]).fit(data, verbose=0)
            result[f"{way} is compiled"] = False
        except tf.errors.InvalidArgumentError as error:
            result[f"{way} is compiled"] = "on XLA_CPU_JIT" in str(error)
    return {**result, "notes": notes_of(ctx)}


def _jit_model(ctx: Any, layers: list[Any]) -> Any:
    keras = tf.keras
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=True)
    return model


def of_graphs(ctx: Any) -> dict[str, Any]:
    """Trains on batches of a composite tensor of the user's own, whose type has no shape."""
    fields = {"__annotations__": {"nodes": tf.Tensor}, "__module__": __name__}
    graph = type("Graph", (tf.experimental.BatchableExtensionType,), fields)

    class Model(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = tf.keras.layers.Dense(1, kernel_initializer="zeros")

        def call(self, given: Any) -> Any:
            return self.dense(tf.reduce_mean(getattr(given, "nodes", given), axis=1))

    data = tf.data.Dataset.range(32).map(lambda _: (graph(tf.ones([3, 4])), tf.ones([1]))).batch(16)
    told = {}
    for name, call in {
        "fit": lambda model: model.fit(data, verbose=0).history["loss"][0],
        "ctx.fit": lambda model: ctx.fit(model, data, epochs=1).history["loss"][0],
        "evaluate": lambda model: model.evaluate(data, verbose=0),
        "predict": lambda model: model.predict(data.map(lambda x, y: x), verbose=0).sum(),
    }.items():
        with ctx.strategy.scope():
            model = Model()
            model.compile(tf.keras.optimizers.SGD(0.0), "mse")
        try:
            told[name] = float(call(model))
        except Exception as error:
            told[name] = f"{type(error).__name__}: {error}"
    # Which TensorFlow gives to the workers whole, and to their replicas in parts.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    given, off = {"tensors": data.map(lambda x, y: (x.nodes, y)), "graphs": data}, {}
    for name, one in given.items():
        with ctx.strategy.scope():
            model = Model()
            model.compile(tf.keras.optimizers.SGD(0.1), "mse")
        try:
            model.fit(one.with_options(options), steps_per_epoch=2, verbose=0)
            off[name] = [float(value) for value in model.dense.kernel.numpy()[:, 0]]
            model.evaluate(one.with_options(options), verbose=0)
        except Exception as error:
            off[name] = f"{type(error).__name__}: {error}"
    return {"told": told, "off": off}
