"""Programs whose results have the same bits for any number of workers, under virtual replicas.

Each returns the bytes of what it has trained: weights, optimizers, statistics, metrics and history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.support.late import LateModule

tf = LateModule("tensorflow")

# The last of 10 batches has 14 examples, which neither 4 nor 6 replicas share evenly.
COUNT, BATCH = 230, 24
EPOCHS = 2


def convnet(ctx: Any, *, count: int = COUNT, **options: Any) -> dict[str, Any]:
    """Augmentation, statistics of batches, dropout, clipped gradients, sample weights and validation.

    Args:
      options: Of ctx.fit.
    """
    keras = tf.keras
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(count, 12, 12, 1)).astype("float32"), rng.integers(0, 3, count)
    weights = rng.random(count).astype("float32")
    with ctx.strategy.scope():
        model = _convnet(keras)
        model.compile(
            keras.optimizers.Adam(0.01, clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
            weighted_metrics=[keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="entropy")],
        )
    return _fitted(ctx, model, (x, y, weights), validation_data=_batches((x[:50], y[:50])), **options)


def few_examples(ctx: Any) -> dict[str, Any]:
    """The convnet with a last batch of 2 examples, which leaves replicas without any."""
    return convnet(ctx, count=3 * BATCH + 2)


def accumulated(ctx: Any) -> dict[str, Any]:
    """The convnet with an update for each two batches."""
    return convnet(ctx, accumulate=2)


def mixed_float16(ctx: Any) -> dict[str, Any]:
    """The convnet in half precision, with a scaled loss."""
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        return convnet(ctx)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def wide(ctx: Any) -> dict[str, Any]:
    """Enough weights for several workers to exchange them in chunks."""
    keras = tf.keras
    rng = np.random.default_rng(0)
    with ctx.strategy.scope():
        layers = [keras.layers.Dense(511, activation="relu"), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((65,)), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return _fitted(ctx, model, (rng.normal(size=(COUNT, 65)).astype("float32"), rng.integers(0, 3, COUNT)))


def returned(ctx: Any) -> dict[str, Any]:
    """Steps that return numbers of their own: of epochs, of batches, of evaluations and by hand."""
    keras = tf.keras

    class Returning(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data[:2]
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
            _update(self.optimizer, tape, loss, self.trainable_variables)
            return {"loss": loss, "parts": {"largest": tf.reduce_max(tf.abs(y)), "half": loss / 2.0}}

        def test_step(self, data: Any) -> dict[str, Any]:
            return {"error": tf.reduce_mean(tf.abs(data[1] - self(data[0])))}

    class Batches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            told.append(float(logs["loss"]))

    told: list[float] = []
    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, 5)).astype("float32")
    y = np.sin(x.sum(1, keepdims=True))
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        inputs = keras.Input((5,))
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        model = Returning(inputs, keras.layers.Dense(1)(hidden))
        model.compile(keras.optimizers.Adam(0.01))
    data, checked = _batches((x, y)), _batches((x[:50], y[:50]))
    # tf_keras's bar multiplies what it shows by a number, and takes no dict.
    history = ctx.fit(model, data, epochs=EPOCHS, validation_data=checked, verbose=0).history
    ctx.fit(model, data, epochs=1, callbacks=[Batches()], verbose=0)
    evaluated = model.evaluate(checked, return_dict=True, verbose=0)
    by_hand = model.train_on_batch(x[:7], y[:7], return_dict=True)
    return {
        **_bytes_of(model.weights),
        **{f"history/{name}": np.array(values, "float64") for name, values in _flat(history)},
        "batches": np.array(told),
        "evaluated": np.array(float(evaluated["error"])),
        "by hand": np.array(float(by_hand["loss"])),
    }


def _flat(history: Any) -> Iterator[tuple[str, Any]]:
    for name, values in history.items():
        if isinstance(values[0], dict):
            yield from ((f"{name}/{inner}", [one[inner] for one in values]) for inner in values[0])
        else:
            yield name, values


def recommender(ctx: Any) -> dict[str, Any]:
    """Sparse gradients of embeddings, one of them with a regularizer, which makes its gradient dense."""
    keras = tf.keras
    layers = keras.layers
    rng = np.random.default_rng(0)
    x = {"user": rng.integers(0, 30, COUNT), "item": rng.integers(0, 50, COUNT)}
    with ctx.strategy.scope():
        inputs = {name: keras.Input((), name=name, dtype="int32") for name in x}
        user = layers.Embedding(30, 8, embeddings_regularizer="l2")(inputs["user"])
        item = layers.Embedding(50, 8)(inputs["item"])
        model = keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([user, item, user * item])))
        error = keras.metrics.RootMeanSquaredError()
        model.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=[error])
    return _fitted(ctx, model, (x, rng.normal(size=COUNT).astype("float32")))


def steps_with_loss_object(ctx: Any) -> dict[str, Any]:
    """The loop of `steps` with a loss of Keras, which divides by the number of replicas."""
    return steps(ctx, has_loss_object=True)


def steps(ctx: Any, *, has_loss_object: bool = False) -> dict[str, Any]:
    """A loop of ctx.train_steps with a metric of its own, in calls of several steps."""
    keras = tf.keras
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(COUNT, 12, 12, 1)).astype("float32"), rng.integers(0, 3, COUNT)
    with ctx.strategy.scope():
        model, optimizer = _convnet(keras), keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)
        mean = keras.metrics.Mean()
        entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(batch: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            logits = model(batch[0], training=True)
            losses = keras.losses.sparse_categorical_crossentropy(batch[1], logits, from_logits=True)
            loss = entropy(batch[1], logits) if has_loss_object else tf.reduce_mean(losses)
        _update(optimizer, tape, loss, model.trainable_variables)
        mean.update_state(loss)
        return {"loss": loss}

    told = ctx.train_steps(step, _batches((x, y)).repeat(), num_steps=22, steps_per_call=4)
    return {
        # The statistics are each replica's own.
        **_bytes_of([*model.trainable_variables, *_variables_of(optimizer), *mean.variables]),
        "told": np.array([float(told["loss"])]),
    }


def draws(ctx: Any) -> dict[str, Any]:
    """Returns what the replicas of this task draw, by what draws it and the replica, twice each."""
    keras = tf.keras
    ones = tf.ones((2, 8, 8, 1))
    with ctx.strategy.scope():
        dropout, translation = keras.layers.Dropout(0.5), keras.layers.RandomTranslation(0.4, 0.4)
        rows = tf.reshape(tf.range(128.0), (2, 8, 8, 1))
        translation.build(rows.shape)
        normal, generator = _normal(keras), tf.random.Generator.from_seed(3)

    def drawn() -> dict[str, Any]:
        return {
            "dropout": dropout(ones, training=True),
            "translation": translation(rows, training=True),
            "normal": normal((4,)),
            "generator": generator.normal((4,)),
        }

    traced = tf.function(lambda: ctx.strategy.run(drawn))
    found: dict[str, Any] = {}
    for time in range(2):
        by_name = traced()
        for name, values in by_name.items():
            own = ctx.strategy.experimental_local_results(values)
            for replica, value in zip(ctx.strategy.own_replicas, own, strict=True):
                found[f"{name}/{time}/{replica}"] = value.numpy()
    return found


def _convnet(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((12, 12, 1)),
            layers.RandomTranslation(0.1, 0.1),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(16, activation="relu"),
            layers.Dense(3, dtype="float32"),
        ]
    )


def _normal(keras: Any) -> Any:
    """Returns a function that draws numbers of a shape by a state that is made in the strategy's scope."""
    if not hasattr(keras, "ops"):
        generator = tf.random.Generator.from_seed(7)
        return lambda shape: generator.normal(shape)
    seed = keras.random.SeedGenerator(7)
    return lambda shape: keras.random.normal(shape, seed=seed)


def _update(optimizer: Any, tape: Any, loss: Any, variables: Sequence[Any]) -> None:
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def _batches(arrays: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(arrays).shuffle(COUNT, seed=1).batch(BATCH)


def _fitted(ctx: Any, model: Any, arrays: Any, **options: Any) -> dict[str, Any]:
    """Trains for two epochs; returns the bytes of all that there is then."""
    history = ctx.fit(model, _batches(arrays), epochs=EPOCHS, **options).history
    of_metrics = [one for metric in model.metrics for one in metric.variables]
    told = {f"history/{name}": np.array(values, "float64") for name, values in history.items()}
    return {**_bytes_of([*model.weights, *_variables_of(model.optimizer), *of_metrics]), **told}


def _variables_of(optimizer: Any) -> list[Any]:
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


def _bytes_of(variables: Sequence[Any]) -> dict[str, np.ndarray]:
    return {f"{index} {name}": value for index, (name, value) in enumerate(_values_of(variables))}


def _values_of(variables: Sequence[Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what each variable has by its name, but for the states of random generators: a collective."""
    for variable in variables:
        name = getattr(variable, "path", None) or variable.name
        if "seed" in name or "StateVar" in name:
            continue
        held = variable if hasattr(variable, "values") else getattr(variable, "value", variable)
        held = held() if callable(held) else held
        is_on_read = "ON_READ" in str(getattr(held, "synchronization", ""))
        one = held if is_on_read or not hasattr(held, "values") else held.values[0]
        yield name, np.asarray(one.numpy())  # what has no axes is none
