"""Train functions whose losses are written in different ways, for tests."""

from __future__ import annotations

import functools
import inspect
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.checks import loss_rules
from raydist.training.checks.layer_notes import _RANDOM
from tests.support.in_tasks import flat, refusal
from tests.support.inside import forget_notes, notes_of

keras = tf.keras


def _examples() -> tuple[np.ndarray, np.ndarray]:
    # The last batch of 6 divides by 2 replicas, the one before as well: a loss that divides by the number of
    # replicas is exact only then.
    x = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
    return x, x.sum(axis=1, keepdims=True)


def loss_written_as(ctx: Any, *, kind: str, batch_size: int = 8) -> dict[str, Any]:
    """Trains with `model.fit`; returns weights, losses and notes."""
    keras.utils.set_random_seed(3)
    with ctx.strategy.scope():
        inputs = keras.Input((4,))
        outputs = keras.layers.Dense(1)(keras.layers.Dense(3, activation="tanh")(inputs))
        model = _class_of(kind, keras)(inputs, outputs)
        if kind == "Keras's Distiller" and hasattr(keras, "distillation"):
            model = keras.distillation.Distiller(
                teacher=keras.models.clone_model(model),
                student=model,
                distillation_losses=keras.distillation.FeatureDistillation(),
            )
        model.compile(keras.optimizers.SGD(0.1), loss=_LOSSES.get(kind, "mse"))
    dataset = tf.data.Dataset.from_tensor_slices(_examples()).batch(batch_size)
    forget_notes(ctx)
    history = model.fit(dataset, epochs=2, verbose=0)
    return {
        "weights": flat(model),
        "loss": next(iter(history.history.values()), []),  # tf_keras shows no loss of compute_loss
        "notes": notes_of(ctx),
    }


def refused(ctx: Any) -> dict[str, Any]:
    """Returns with what some steps are refused for their shares, without those that train."""
    calls = {
        **{kind: functools.partial(loss_written_as, kind=kind) for kind in _OWN_LOSSES},
        "assigns the mean": functools.partial(step_that_needs_a_note, kind="assigns the mean"),
    }
    found = {}
    for kind, call in calls.items():
        try:
            told = call(ctx)["notes"]
        except UnsupportedError as error:
            told = [str(error)]
        for one in told:
            if "--shares" in one:
                found[kind] = one
    return found


def layer_that_draws(ctx: Any, *, kind: str) -> dict[str, Any]:
    """Trains a model with a layer of the user's; returns what was noted."""
    keras.utils.set_random_seed(3)

    class Noise(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            return inputs + (tf.random.normal(tf.shape(inputs)) if kind == "layer" else 0.0)

    class Subclassed(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="subclassed")
            self.last = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.last(inputs + tf.random.uniform([4]))

    with ctx.strategy.scope():
        if kind == "subclassed":
            model = Subclassed()
        else:
            noise = (
                keras.layers.Lambda(lambda one: one + tf.random.normal([4])) if kind == "lambda" else Noise()
            )
            model = keras.Sequential([keras.Input((4,)), noise, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), loss="mse")
    noted = len(notes_of(ctx))
    data = tf.data.Dataset.from_tensor_slices(_examples()).batch(6)
    model.fit(data if kind != "subclassed" else data.filter(lambda x, y: True), epochs=1, verbose=0)
    return {"notes": [one for one in notes_of(ctx)[noted:] if "random" in one]}


def loop_that_evaluates(ctx: Any) -> dict[str, Any]:
    """Runs steps without an update; returns what was noted."""
    noted = len(notes_of(ctx))
    data = tf.data.Dataset.from_tensor_slices(_examples()).batch(6)
    ctx.train_steps(lambda batch: {"error": _mean(batch[1], 0.0)}, data, num_steps=5)
    return {"notes": notes_of(ctx)[noted:]}


def _mean(y: Any, predicted: Any) -> Any:
    return tf.reduce_mean(tf.square(y - predicted))


def _sum(y: Any, predicted: Any) -> Any:
    return 0.1 * tf.reduce_sum(tf.square(y - predicted))


def _of_each(y: Any, predicted: Any) -> Any:
    return tf.reduce_mean(tf.square(y - predicted), axis=-1)


def _divided_by_replicas(y: Any, predicted: Any) -> Any:
    return _mean(y, predicted) / tf.distribute.get_strategy().num_replicas_in_sync


def _average_loss(y: Any, predicted: Any) -> Any:
    return tf.nn.compute_average_loss(_of_each(y, predicted))


def _divided_by_three(y: Any, predicted: Any) -> Any:
    return tf.reduce_sum(_of_each(y, predicted)) / 3.0


def _loss_object_and_mean(y: Any, predicted: Any) -> Any:
    return tf.keras.losses.MeanSquaredError()(y, predicted) + tf.reduce_mean(predicted**2)


def _comparing_examples(y: Any, predicted: Any) -> Any:
    return _mean(y, predicted) + tf.math.reduce_variance(predicted)


def _random(y: Any, predicted: Any) -> Any:
    return _mean(y, predicted + 0.1 * tf.random.stateless_normal(tf.shape(predicted), seed=(1, 2)))


_OWN_LOSSES = {
    "step, mean": _mean,
    "step, divided by replicas": _divided_by_replicas,
    "step, average loss": _average_loss,
    "step, divided by three": _divided_by_three,
    "step, loss object and mean": _loss_object_and_mean,
    "step, compares examples": _comparing_examples,
    "step, random": _random,
}
_LOSSES = {"function, mean": _mean, "function, sum": _sum}


def _stepped(keras: Any) -> type:
    """Returns a class of models whose step trains by `own_loss` and `own_gradients`."""

    class OwnStep(keras.Model):  # type: ignore[misc, name-defined]
        own_loss = staticmethod(_mean)

        def own_gradients(self, gradients: Any) -> Any:
            return gradients

        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.own_loss(y, self(x, training=True))
            gradients = self.own_gradients(tape.gradient(loss, self.trainable_variables))
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own": loss}

    return OwnStep


def _class_of(kind: str, keras: Any) -> type:
    class OwnLoss(keras.Model):  # type: ignore[misc, name-defined]
        def compute_loss(
            self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **_: Any
        ) -> Any:
            return _mean(y, y_pred) + 0.01 * tf.reduce_sum(tf.square(self.trainable_variables[0]))

    if kind == "compute_loss":
        return OwnLoss
    if not kind.startswith("step"):
        return keras.Model  # type: ignore[no-any-return]
    own_step = _stepped(keras)
    own_step.own_loss = staticmethod(_OWN_LOSSES[kind])  # type: ignore[attr-defined]
    return own_step


def _dense(keras: Any, model_class: Any) -> Any:
    inputs = keras.Input((4,))
    return model_class(inputs, keras.layers.Dense(1)(inputs))


def _fitted(ctx: Any, model: Any, *, epochs: int, **options: Any) -> dict[str, Any]:
    """Trains on batches of 6; returns weights and notes."""
    forget_notes(ctx)
    data = tf.data.Dataset.from_tensor_slices(_examples()).batch(6)
    model.fit(data, epochs=epochs, verbose=0, **options)
    return {"weights": flat(model), "notes": notes_of(ctx)}


def term_that_begins_at_zero(ctx: Any) -> dict[str, Any]:
    """Trains by Keras's loss and a term scaled by the replicas, whose weight is 0 in the first epoch."""
    keras.utils.set_random_seed(3)

    class Annealed(_stepped(keras)):  # type: ignore[misc]
        def own_loss(self, y: Any, predicted: Any) -> Any:
            loss = self.compute_loss(x=None, y=y, y_pred=predicted)
            return loss + self.term_weight * _divided_by_replicas(2 * y, predicted)

    class Anneal(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.model.term_weight.assign(float(epoch))

    with ctx.strategy.scope():
        model = _dense(keras, Annealed)
        model.term_weight = tf.Variable(0.0, trainable=False)
        model.compile(keras.optimizers.SGD(0.05), loss="mse")
    return _fitted(ctx, model, epochs=3, callbacks=[Anneal()])


def first_step_overflows(ctx: Any) -> dict[str, Any]:
    """Trains in float16 by a step with a mean, whose first gradients are not finite."""
    keras.utils.set_random_seed(3)
    keras.mixed_precision.set_global_policy("mixed_float16")

    class Step(keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = _mean(y, tf.cast(self(x, training=True), tf.float32))
                scaled = self.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"own": loss}

    try:
        with ctx.strategy.scope():
            model = _dense(keras, Step)
            inner = keras.optimizers.SGD(0.1)
            model.compile(keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**20))
    finally:
        keras.mixed_precision.set_global_policy("float32")
    return _fitted(ctx, model, epochs=5)


def step_that_counts_its_calls(ctx: Any) -> dict[str, Any]:
    """Trains eagerly; the model counts in a plain attribute how often its step was called."""

    class Counting(_stepped(tf.keras)):  # type: ignore[misc]
        calls = 0

        def train_step(self, data: Any) -> Any:
            self.calls += 1
            return super().train_step(data)

    with ctx.strategy.scope():
        model = _dense(tf.keras, Counting)
        model.compile(tf.keras.optimizers.SGD(0.1), run_eagerly=True)
    _fitted(ctx, model, epochs=2)
    local = len(ctx.strategy.extended.worker_devices)
    return {"calls": model.calls / local}


def step_that_sums_its_gradients_itself(ctx: Any, *, is_divided: bool) -> dict[str, Any]:
    """Trains tf_keras by a step that adds up the gradients by itself, of losses divided by the replicas."""
    keras.utils.set_random_seed(3)

    class Summing(keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                loss = (_divided_by_replicas if is_divided else _mean)(y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            replica = tf.distribute.get_replica_context()
            gradients = replica.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            self.optimizer.apply_gradients(
                zip(gradients, self.trainable_variables, strict=True), skip_gradients_aggregation=True
            )
            return {"own": loss}

    with ctx.strategy.scope():
        model = _dense(keras, Summing)
        model.compile(keras.optimizers.SGD(0.1))
    return _fitted(ctx, model, epochs=2)


def step_that_needs_a_note(ctx: Any, *, kind: str) -> dict[str, Any]:
    """Trains by a step that means something else on each replica; returns the notes."""
    keras.utils.set_random_seed(3)

    class Step(_stepped(keras)):  # type: ignore[misc]
        def own_loss(self, y: Any, predicted: Any) -> Any:
            predicted += self.scale
            if kind.startswith("assigns"):
                self.centre.assign(0.9 * self.centre + 0.1 * tf.reduce_mean(predicted))
            if kind == "unscaled regularizer":
                return _average_loss(y, predicted) + 0.5 * tf.reduce_sum(tf.square(self.scale))
            return _mean(y, predicted)

        def own_gradients(self, gradients: Any) -> Any:
            if kind == "clips":
                return tf.clip_by_global_norm(gradients, 0.1)[0]
            if kind == "reduces":
                context = tf.distribute.get_replica_context()
                return context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
            return gradients

    mean = tf.VariableAggregation.MEAN if kind == "assigns the mean" else tf.VariableAggregation.NONE
    with ctx.strategy.scope():
        model = _dense(keras, Step)
        model.centre = tf.Variable(0.0, trainable=False, aggregation=mean, name="centre")
        model.scale = keras.Variable(1.0) if hasattr(keras, "Variable") else tf.Variable(1.0)
        model.compile(keras.optimizers.SGD(0.01))
    try:
        return _fitted(ctx, model, epochs=1)
    except UnsupportedError as error:
        return {"notes": [*notes_of(ctx), str(error)]}


def model_that_has(ctx: Any, *, kind: str) -> dict[str, Any]:
    """Trains a model whose loss, layer or metric is of that kind; returns notes, and if it was checked."""

    keras.utils.set_random_seed(3)

    class Sampling(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            tf.random.normal(tf.shape(inputs))
            return inputs

    def assign_if(decides: Any, variable: Any, value: Any) -> None:
        if hasattr(keras, "ops"):  # Keras 3 builds layers without effects, where it follows no condition
            variable.assign(tf.where(decides, value(), tf.convert_to_tensor(variable)))
            return

        def assign() -> Any:
            variable.assign(value())
            return True

        tf.cond(decides, assign, lambda: False)

    class Pruned(keras.layers.Layer):  # type: ignore[misc, name-defined]
        """Counts its steps, and makes its mask anew each second one, as pruning does."""

        def build(self, input_shape: Any) -> None:
            self.kernel = self.add_weight(shape=(3,), initializer="ones", name="kernel")
            self.mask = self.add_weight(shape=(3,), initializer="ones", trainable=False, name="mask")
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

        def call(self, inputs: Any) -> Any:
            self.count.assign(self.count + 1.0)
            is_even = tf.convert_to_tensor(self.count) % 2.0 == 0.0
            kernel = tf.convert_to_tensor(self.kernel)
            assign_if(is_even, self.mask, lambda: tf.cast(kernel > 0.5, tf.float32))
            return inputs * kernel * tf.stop_gradient(tf.convert_to_tensor(self.mask))

    class Averaged(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, input_shape: Any) -> None:
            self.mean = self.add_weight(shape=(3,), initializer="zeros", trainable=False, name="mean")

        def call(self, inputs: Any) -> Any:
            assign_if(tf.constant(True), self.mean, lambda: tf.reduce_mean(inputs, 0))
            return inputs - self.mean

    class Centred(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            return inputs - tf.reduce_mean(inputs, axis=0, keepdims=True)

    class Stack(keras.Model):  # type: ignore[misc, name-defined]
        """Holds others, and calls one after the other."""

        def __init__(self, *inner: Any) -> None:
            super().__init__(name="stack")
            self.inner = list(inner)

        def call(self, inputs: Any) -> Any:
            for one in self.inner:
                inputs = one(inputs)
            return inputs

    class Paired(keras.Model):  # type: ignore[misc, name-defined]
        """Multiplies by a number of all examples, as `tensordot` with 2 axes does."""

        def __init__(self) -> None:
            super().__init__(name="paired")
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs) * tf.tensordot(inputs, inputs, 2)

    def text(length: int | None) -> list[Any]:
        vectors = keras.layers.TextVectorization(
            vocabulary=["one"], output_sequence_length=length, name="text"
        )
        return [vectors, keras.layers.Embedding(3, 3), keras.layers.GlobalAveragePooling1D()]

    class Ties(keras.metrics.Mean):  # type: ignore[misc, name-defined]
        """Draws as rankings do that break ties."""

        def __init__(self) -> None:
            super().__init__(name="ties")
            self.draws = keras.random.SeedGenerator(4) if hasattr(keras, "random") else None

        def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> Any:
            shape = tf.shape(predicted)
            noise = tf.random.uniform(shape) if self.draws is None else _keras_uniform(shape, self.draws)
            return super().update_state(tf.cast(predicted, tf.float32) + noise)

    def contrast(y: Any, predicted: Any) -> Any:
        """Compares each pair of a batch."""
        return tf.reduce_mean(
            tf.nn.relu(1.0 - (predicted - tf.transpose(predicted)) * tf.sign(y - tf.transpose(y)))
        )

    def masked(y: Any, predicted: Any) -> Any:
        valid = tf.cast(y > -1.0, tf.float32)
        return tf.reduce_sum(valid * tf.square(y - predicted)) / (1.0 + tf.reduce_sum(valid))

    layers = {
        "a layer whose draws are not used": Sampling,
        "a dropout": lambda: keras.layers.Dropout(0.5),
        "a pruned layer": Pruned,
        "an averaged layer": Averaged,
        "a layer that compares": lambda: Centred(name="centred"),
        "a softmax over the batch": lambda: keras.layers.Softmax(axis=0, name="ranks"),
        "a model of Keras's layers": lambda: Stack(keras.layers.Dense(3), keras.layers.LayerNormalization()),
    }
    paired = "a subclassed model that compares"
    texts = {
        "text as long as the longest": lambda: text(None),
        "text of one length": lambda: text(6),
    }
    losses = {
        "a metric that draws": contrast,
        "a masked mean": masked,
        **dict.fromkeys((*texts, "a layer that compares", "a model of Keras's layers", paired), "mse"),
        "a softmax over the batch": "mse",
    }
    if hasattr(keras.losses, "Dice"):
        losses |= {
            "Keras's Dice": keras.losses.Dice(),
            "Keras's Dice by its name": "dice",
            "Keras's Dice of each example": keras.losses.Dice(axis=1),
        }
    loss = losses.get(kind, lambda y, predicted: _mean(y, predicted))
    with ctx.strategy.scope():
        hidden = keras.layers.Dense(3, activation="tanh", name="hidden")
        between = [layers[kind]()] if kind in layers else []
        model = keras.Sequential([keras.Input((4,)), hidden, *between, keras.layers.Dense(1)])
        if kind in texts:
            model = keras.Sequential(
                [keras.Input((1,), dtype="string"), *texts[kind](), keras.layers.Dense(1)]
            )
        if kind == paired:
            model = Paired()
        model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=[Ties()] if "metric" in kind else [])
    noted = len(notes_of(ctx))
    x, y = _examples()
    if kind in texts:
        x = np.array([["one " * (row % 20 + 1)] for row in range(len(x))])
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(20), epochs=1, verbose=0)
    notes = notes_of(ctx)[noted:]
    return {"notes": notes, "checked": loss_rules.is_decided(model)}


def _keras_uniform(shape: Any, seed: Any) -> Any:
    import keras

    return keras.random.uniform(shape, seed=seed)


def optimizer_that_accumulates_as_an_attribute(ctx: Any) -> dict[str, Any]:
    with ctx.strategy.scope():
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.d_optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    return {"error": refusal(model.fit, *_examples(), verbose=0)}


def keras_layers_that_draw(ctx: Any) -> dict[str, Any]:
    """Returns Keras's layers that have a generator of random numbers and that no note would name."""
    import keras

    unnamed = []
    for name, layer in vars(keras.layers).items():
        is_ours = inspect.isclass(layer) and name != "JaxLayer"  # which needs JAX
        if not is_ours or "SeedGenerator(" not in inspect.getsource(layer):
            continue
        is_by_rate = "Dropout" in name or "dropout" in inspect.signature(layer.__init__).parameters
        if not is_by_rate and not name.startswith(_RANDOM):
            unnamed.append(name)
    return {"unnamed": unnamed}


def model_made_outside(ctx: Any) -> dict[str, Any]:
    """Uses a model that no strategy holds in each way that Keras has."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x, y = _examples()
    losses = model.fit(x, y, epochs=2, batch_size=8, shuffle=False, verbose=0).history["loss"]
    values = model.evaluate(x, y, verbose=0)
    predicted = model.predict(x, verbose=0)
    on_batch = model.predict_on_batch(x[:5])
    model.train_on_batch(x, y)
    model.test_on_batch(x, y)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
        np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    np.testing.assert_allclose(on_batch, predicted[:5], atol=1e-6)
    return {
        "weights": flat(model),
        "predicted": predicted,
        "loss": losses,
        "values": list(map(float, values)),
    }


def optimizers_with_repeated_rows(ctx: Any) -> dict[str, Any]:
    """Trains tables with each optimizer, of which a batch looks up some rows several times.

    On one device also without the strategy, where Keras is as it was installed.
    """
    optimizers = keras.optimizers
    # A large epsilon, or rounding decides where the gradient is nearly zero.
    made = {
        "SGD": optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        "Adam": optimizers.Adam(0.1, epsilon=1e-3),
        "Adagrad": optimizers.Adagrad(0.1),
        "Nadam": optimizers.Nadam(0.1, epsilon=1e-3),
        "Ftrl": optimizers.Ftrl(0.1),
        "global_clipnorm": optimizers.Adam(0.1, epsilon=1e-3, global_clipnorm=0.01),
        "EMA": optimizers.Adam(0.1, epsilon=1e-3, use_ema=True, ema_momentum=0.5),
    }
    tables, notes, refused = {}, {}, {}
    for name, optimizer in made.items():
        before = notes_of(ctx)
        with ctx.strategy.scope():
            model = _tables(keras, optimizer)
        try:
            tables[name] = _trained_tables(model)
        except UnsupportedError as error:
            refused[name] = str(error)
            continue
        notes[name] = notes_of(ctx)[len(before) :]
        if ctx.strategy.num_replicas_in_sync == 1:
            tables[f"plain {name}"] = _trained_tables(_tables(keras, optimizer))
    for name in ("SGD without momentum", "Adam"):
        forget_notes(ctx)
        with ctx.strategy.scope():
            model = _tables(keras, optimizers.Adam() if name == "Adam" else optimizers.SGD())
        model.run_eagerly = True
        _trained_tables(model)
        notes[f"{name}, eager"] = notes_of(ctx)
    return {**tables, "notes": notes, "refused": refused}


def _tables(keras: Any, optimizer: Any) -> Any:
    """Returns a model that looks up words of its examples, and positions once for all of them."""
    inputs = keras.Input((None,), dtype="int32")
    make = functools.partial(keras.layers.Embedding, embeddings_initializer="zeros")
    words, at_known_length, at_any_length = make(5, 2), make(4, 2), make(4, 2)
    positions = tf.constant([0, 1, 2, 1])

    class Lookup(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tables = [words, at_known_length, at_any_length]

        def call(self, indices: Any) -> Any:
            weights = tf.cast(indices[:, :1, None] + 1, tf.float32)
            same = at_known_length(positions)[None, :3] + at_known_length(positions)[None, 1:]
            others = at_any_length(tf.range(tf.shape(indices)[1]))[None]
            return words(indices) + weights * (same + others)

        def compute_output_shape(self, input_shape: Any) -> Any:
            return (*input_shape, 2)

    model = keras.Model(inputs, Lookup()(inputs))
    model.compile(type(optimizer).from_config(optimizer.get_config()), loss="mse")
    return model


def _trained_tables(model: Any) -> np.ndarray:
    rng = np.random.default_rng(1)
    x = rng.integers(0, 5, size=(14, 3)).astype("int32")
    y = rng.normal(size=(14, 3, 2)).astype("float32")
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(5), epochs=2, verbose=0)
    return flat(model)


def float16_sum_overflows(ctx: Any) -> dict[str, Any]:
    """Trains where the sum over a batch overflows float16, and the sums over halves of it do not."""
    keras.utils.set_random_seed(3)
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with ctx.strategy.scope():
            model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
            inner = keras.optimizers.SGD(1e-3)
            optimizer = keras.mixed_precision.LossScaleOptimizer(
                inner, initial_scale=256.0, dynamic_growth_steps=4
            )
            model.compile(optimizer, loss="mse")
    finally:
        keras.mixed_precision.set_global_policy("float32")
    x = np.abs(_examples()[0][:24])
    y = np.full([24, 1], 100.0, "float32")
    model.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(8), epochs=4, verbose=0)
    # tf_keras counts skipped steps too, and its scale tells of them.
    scale = optimizer.loss_scale if hasattr(optimizer, "loss_scale") else optimizer.dynamic_scale
    return {
        "weights": flat(model),
        "steps": int(optimizer.iterations.numpy()),
        "scale": float(tf.convert_to_tensor(scale)),
    }


def layer_losses_in_a_loop(ctx: Any) -> dict[str, Any]:
    """Sums `model.losses` in a bare loop, one of them made by a loss object inside of a layer."""
    keras.utils.set_random_seed(3)

    class Endpoint(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.loss_fn = keras.losses.MeanSquaredError()

        def call(self, inputs: Any) -> Any:
            targets, predicted = inputs
            self.add_loss(self.loss_fn(targets, predicted))
            return predicted

    with ctx.strategy.scope():
        inputs, targets = keras.Input((4,)), keras.Input((1,))
        model = keras.Model([inputs, targets], Endpoint()([targets, keras.layers.Dense(1)(inputs)]))
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def step(batch: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            model(list(batch), training=True)
            loss = sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return {"loss": loss}

    x, y = (part[:24] for part in _examples())
    ctx.train_steps(step, tf.data.Dataset.from_tensor_slices((x, y)).batch(8), num_steps=6)
    return {"weights": flat(model)}


def compiled_twice(ctx: Any) -> dict[str, Any]:
    """Trains by a loss that divides by the replicas, compiles again, and trains by a mean."""
    keras.utils.set_random_seed(3)
    phases = _stepped(keras)
    with ctx.strategy.scope():
        model = _dense(keras, phases)
    for loss in (_average_loss, _mean):
        phases.own_loss = staticmethod(loss)  # type: ignore[attr-defined]
        with ctx.strategy.scope():
            model.compile(keras.optimizers.SGD(0.1))
        found = _fitted(ctx, model, epochs=1)
    return found
