"""Steps for `ctx.train_steps`, written in many ways, for tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from raydist.errors import UnsupportedError
from tests.support.in_tasks import descend
from tests.support.inside import forget_notes, notes_of
from tests.support.late import LateModule

tf = LateModule("tensorflow")

TWO = 2
NUM_CLASSES = 2
BATCH = 12
# Batches that two and three replicas do not divide, and a smaller last one.
UNEVEN = {"metric, uneven": 13}


class Alone:
    """As much of a context as the steps use, on one device and without raydist."""

    num_workers = 1

    def __init__(self) -> None:
        self.strategy = tf.distribute.get_strategy()

    def train_steps(self, step_fn: Any, data: Any, *, num_steps: int) -> dict[str, float]:
        shown = [_flat(step_fn(batch)) for batch in data.take(num_steps)]
        return {name: float(np.mean([one[name] for one in shown])) for name in shown[0]}


def _flat(returned: dict[str, Any]) -> dict[str, Any]:
    """Returns what a step returns with the names that `train_steps` gives to it."""
    flat: dict[str, Any] = {}
    for name, value in returned.items():
        inner = _flat(value) if isinstance(value, dict) else None
        flat |= (
            {name: float(value)} if inner is None else {f"{name}/{key}": one for key, one in inner.items()}
        )
    return flat


def loops(ctx: Any, *, kinds: list[str], num_steps: int = 3) -> dict[str, Any]:
    """Trains by each kind of step; returns how weights moved, what was shown, and the notes of each.

    `fit, KIND` is a model that has the step as its `train_step`. What one device does without raydist,
    eagerly, is `right` and `right shown`.
    """
    found: dict[str, Any] = {}
    for kind in kinds:
        for context, name in ((Alone(), "right"), (ctx, "weights")):
            forget_notes(ctx)
            CALLS.clear()
            try:
                weights, shown = _trained(context, kind, num_steps)
            except Exception as error:
                found[f"{kind}/error"] = f"{type(error).__name__}: {error}"
                weights, shown = np.zeros(0), {}
            found[f"{kind}/{name}"] = weights
            found[f"{kind}/{'shown' if context is ctx else 'right shown'}"] = shown
        found[f"{kind}/calls"] = len(CALLS)
        notes = notes_of(ctx)
        found[f"{kind}/notes"] = [one for one in notes if "ctx.restore" not in one]
    return found


def _examples() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(36, 4))
    mask = np.ones(36)
    mask[BATCH:] = np.arange(36 - BATCH) % 7 < 3  # the first batch has no padding, the later ones have
    labels = (x.sum(1) > 0).astype("int32")
    y = x.sum(1, keepdims=True) + 0.3
    return {"x": x, "y": y, "mask": mask, "label": labels, "token": np.abs(10 * x).astype("int32") % 7}


def _trained(ctx: Any, kind: str, num_steps: int) -> tuple[np.ndarray, dict[str, float]]:
    keras = tf.keras
    is_fit, kind = kind.startswith("fit, "), kind.removeprefix("fit, ")
    keras.backend.set_floatx("float64")
    keras.utils.set_random_seed(3)
    try:
        size = UNEVEN.get(kind, BATCH)
        data = tf.data.Dataset.from_tensor_slices(_examples()).batch(size)
        with ctx.strategy.scope():
            bench = Bench(ctx)
            step = STEPS[kind](bench) if kind in STEPS else None
        step = step or OUTSIDE[kind](bench)
        start = bench.weights
        if is_fit and not isinstance(ctx, Alone):
            bench.model.step = step
            bench.model.compile(bench.optimizer)
            shown = ctx.fit(bench.model, data, epochs=1, steps_per_epoch=num_steps).history
        else:
            shown = ctx.train_steps(step, data, num_steps=num_steps)
        return bench.weights - start, dict(shown)
    finally:
        keras.backend.set_floatx("float32")


def _stepped(keras: Any) -> Any:
    class Stepped(keras.Sequential):  # type: ignore[misc, name-defined]
        step: Any = None

        def train_step(self, data: Any) -> Any:
            return self.step(data)

    return Stepped


class Bench:
    """What a step is made of: a model, an optimizer, and a loss of each example."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx
        self.num_replicas = ctx.strategy.num_replicas_in_sync
        dense = tf.keras.layers.Dense
        self.use(dense(3, activation="tanh", kernel_initializer=_normal()), *self.end())

    def end(self, **options: Any) -> list[Any]:
        return [tf.keras.layers.Dense(2, kernel_initializer=_normal(), **options)]

    def use(self, *layers: Any, column: str = "x", optimizer: Callable[[], Any] | None = None) -> None:
        """Takes a model of these layers, which is called with a column of the batch."""
        keras, self.column = tf.keras, column
        self.optimizer = keras.optimizers.SGD(0.1) if optimizer is None else optimizer()
        inputs = keras.Input((4,), dtype=None if column == "x" else "int32")
        self.model = _stepped(keras)([inputs, *layers])
        self.optimizer.build(self.model.trainable_variables)

    @property
    def weights(self) -> np.ndarray:
        return np.concatenate([np.ravel(one.numpy()) for one in self.model.trainable_variables])

    def of_each(self, batch: Any) -> Any:
        """Returns the squared error of each example."""
        predicted = self.model(batch[self.column], training=True)
        return tf.reduce_mean((batch["y"] - tf.cast(predicted, tf.float64)) ** 2, axis=-1)

    def mean(self, batch: Any) -> Any:
        return tf.reduce_mean(self.of_each(batch))

    def average(self, batch: Any) -> Any:
        return tf.nn.compute_average_loss(self.of_each(batch))

    def penalty(self) -> Any:
        return 0.1 * tf.reduce_sum(self.model.trainable_variables[0] ** 2)

    def step(
        self,
        loss_of: Callable[[Any], Any],
        changed: Callable[[Any], Any] = lambda gradients: gradients,
        /,
        **shown: Callable[[Any, Any], Any],
    ) -> Callable[[Any], Any]:
        """Returns a step that trains by a loss of the batch, and by gradients that are changed."""
        model, optimizer = self.model, self.optimizer

        def step(batch: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = loss_of(batch)
            gradients = changed(tape.gradient(loss, model.trainable_variables))
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return {"loss": loss, **{name: value(batch, gradients) for name, value in shown.items()}}

        return step


def _normal() -> Any:
    return tf.keras.initializers.RandomNormal(stddev=0.3, seed=1)


def _step_of(loss_of: Callable[[Bench, Any], Any]) -> Callable[[Bench], Any]:
    return lambda bench: bench.step(functools.partial(loss_of, bench))


def _divided_outside(bench: Bench) -> Any:
    number = bench.num_replicas
    return bench.step(lambda batch: bench.mean(batch) / number)


def _divided_by_self(bench: Bench) -> Any:
    class Trainer:
        def __init__(self) -> None:
            self.number = bench.num_replicas

        def step(self, batch: Any) -> Any:
            return bench.step(lambda one: bench.mean(one) / self.number)(batch)

    return Trainer().step


def _part_divided(bench: Bench) -> Any:
    number = bench.num_replicas

    def loss(batch: Any) -> Any:
        return bench.mean(batch) / number + bench.penalty()

    return bench.step(loss)


def _divided_by_workers(bench: Bench) -> Any:
    ctx = bench.ctx
    return bench.step(lambda batch: bench.mean(batch) / ctx.num_workers)


def _gradients_divided(bench: Bench) -> Any:
    number = bench.num_replicas
    return bench.step(bench.mean, lambda gradients: [gradient / number for gradient in gradients])


def _partial(bench: Bench) -> Any:
    def step(batch: Any, scale: float) -> Any:
        return bench.step(lambda one: scale * bench.mean(one))(batch)

    return functools.partial(step, scale=2.0)


def _masked(bench: Bench, batch: Any) -> Any:
    mask = batch["mask"]
    return tf.reduce_sum(mask * bench.of_each(batch)) / tf.maximum(tf.reduce_sum(mask), 1)


def _branch(bench: Bench, batch: Any) -> Any:
    loss = bench.mean(batch)
    if loss > 0.5:
        loss = 2.0 * loss
    return loss


def _loop_over_rows(bench: Bench, batch: Any) -> Any:
    total = tf.zeros([], tf.float64)
    for one in bench.of_each(batch):
        total += one
    return total / BATCH


def _assigns(bench: Bench, **options: Any) -> Any:
    center = tf.Variable(tf.zeros([4], tf.float64), trainable=False, name="center", **options)

    def loss(batch: Any) -> Any:
        center.assign(0.5 * center + 0.5 * tf.reduce_mean(batch["x"], axis=0))
        return bench.mean({**batch, "x": batch["x"] - center})

    return bench.step(loss)


def _warm_up(bench: Bench, loss_of: Callable[[Any], Any]) -> Any:
    count = tf.Variable(
        0.0, dtype=tf.float64, trainable=False, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
    )

    def loss(batch: Any) -> Any:
        value = tf.identity(count) * loss_of(batch)
        count.assign_add(1.0)
        return value

    return bench.step(loss)


def _metric(bench: Bench) -> Any:
    metric = tf.keras.metrics.Mean()
    inner = bench.step(bench.mean)

    def step(batch: Any) -> dict[str, Any]:
        found = inner(batch)
        metric.update_state(bench.of_each(batch))
        return {**found, "average": metric.result()}

    return step


def _calls_python(bench: Bench) -> Any:
    def seen(x: Any) -> Any:
        CALLS.append(1)
        return x

    def loss(batch: Any) -> Any:
        x = tf.ensure_shape(tf.py_function(seen, [batch["x"]], tf.float64), [None, 4])
        return bench.mean({**batch, "x": x})

    return bench.step(loss)


def _fails_in_python(bench: Bench) -> Any:
    def fails(x: Any) -> Any:
        raise ValueError("not these numbers")

    def loss(batch: Any) -> Any:
        x = tf.ensure_shape(tf.numpy_function(fails, [batch["x"]], tf.float64), [None, 4])
        return bench.mean({**batch, "x": x})

    return bench.step(loss)


def _shown(bench: Bench) -> Any:
    return bench.step(
        lambda batch: tf.nn.compute_average_loss(bench.of_each(batch), global_batch_size=BATCH),
        biggest=lambda batch, gradients: tf.reduce_max(batch["x"]),
        total=lambda batch, gradients: tf.reduce_sum(batch["x"]),
        norm=lambda batch, gradients: tf.linalg.global_norm(gradients),
        average=lambda batch, gradients: tf.reduce_mean(batch["x"]),
        rate=lambda batch, gradients: 0.1,
        padded=lambda batch, gradients: tf.reduce_sum(1 - batch["mask"]),
    )


def _kinds_shown(bench: Bench) -> Any:
    return bench.step(
        bench.mean,
        flag=lambda batch, gradients: tf.reduce_all(batch["x"] < 100),
        yes=lambda batch, gradients: True,
        count=lambda batch, gradients: tf.shape(batch["x"])[0],
        nested=lambda batch, gradients: {"one": tf.reduce_mean(batch["x"]), "two": {"three": 3}},
    )


def _with(layers_of: Callable[[], list[Any]], loss_of: Any = Bench.mean, **options: Any) -> Any:
    """Returns what makes a step of a model with these layers ahead of its last one."""

    def step(bench: Bench) -> Any:
        bench.use(*layers_of(), *bench.end(), **options)
        return _step_of(loss_of)(bench)

    return step


def _dense(**options: Any) -> Any:
    return tf.keras.layers.Dense(3, kernel_initializer=_normal(), **options)


def _normed(name: str, **options: Any) -> Callable[[], list[Any]]:
    def layers() -> list[Any]:
        norm = getattr(tf.keras.layers, name)(**options)
        return [_dense(), norm, tf.keras.layers.Activation("tanh")]

    return layers


def _recurrent(name: str) -> Callable[[], list[Any]]:
    def layers() -> list[Any]:
        starts = {"kernel_initializer": _normal(), "recurrent_initializer": _normal()}
        return [tf.keras.layers.Reshape((4, 1)), getattr(tf.keras.layers, name)(3, **starts)]

    return layers


def _embedded() -> list[Any]:
    layers = tf.keras.layers
    return [layers.Embedding(7, 3, embeddings_initializer=_normal()), layers.GlobalAveragePooling1D()]


def _masked_tokens() -> list[Any]:
    starts = {"kernel_initializer": _normal(), "recurrent_initializer": _normal()}
    layers = tf.keras.layers
    embedding = layers.Embedding(7, 3, mask_zero=True, embeddings_initializer=_normal())
    return [embedding, layers.GRU(3, **starts)]


def _convolved() -> list[Any]:
    layers = tf.keras.layers
    return [
        layers.Reshape((4, 1)),
        layers.Conv1D(3, 2, kernel_initializer=_normal()),
        layers.MaxPooling1D(),
        layers.Flatten(),
    ]


def _adapted() -> list[Any]:
    norm = tf.keras.layers.Normalization()
    norm.adapt(_examples()["x"])
    return [norm, _dense()]


def _regularized() -> list[Any]:
    return [_dense(kernel_regularizer=tf.keras.regularizers.L2(0.1))]


def _mixed(policy: str) -> Any:
    def step(bench: Bench) -> Any:
        keras = tf.keras
        optimizer = keras.optimizers.SGD(0.1)
        if policy == "mixed_float16":
            optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=64)
        bench.use(_dense(dtype=policy), *bench.end(dtype=policy), optimizer=lambda: optimizer)

        def step(batch: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = bench.mean(batch)
                scaled = loss
                if hasattr(optimizer, "scale_loss"):
                    scaled = optimizer.scale_loss(loss)
                elif hasattr(optimizer, "get_scaled_loss"):
                    scaled = optimizer.get_scaled_loss(loss)
            gradients = tape.gradient(scaled, bench.model.trainable_variables)
            if hasattr(optimizer, "get_unscaled_gradients"):
                gradients = optimizer.get_unscaled_gradients(gradients)
            optimizer.apply_gradients(zip(gradients, bench.model.trainable_variables, strict=True))
            return {"loss": loss}

        return step

    return step


def _contrasted(bench: Bench, batch: Any) -> Any:
    found = bench.model(batch["x"], training=True)
    logits = tf.matmul(found, found, transpose_b=True)
    labels = tf.range(tf.shape(logits)[0])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def _counts(bench: Bench) -> Any:
    count = tf.Variable(
        0.0,
        dtype=tf.float64,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )

    def loss(batch: Any) -> Any:
        count.assign_add(tf.reduce_sum(batch["mask"]))
        return bench.mean(batch)

    return bench.step(loss)


def _by_hand(aggregation: str, loss_of: Any) -> Any:
    def step(bench: Bench) -> Any:
        kernel = tf.Variable(
            0.1 * tf.ones([4, 2], tf.float64), aggregation=getattr(tf.VariableAggregation, aggregation)
        )
        bench.model = tf.Module()
        bench.model.kernel = kernel

        def of_each(batch: Any) -> Any:
            return tf.reduce_mean((batch["y"] - batch["x"] @ kernel) ** 2, axis=-1)

        bench.of_each = of_each  # type: ignore[method-assign]

        def step(batch: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                loss = loss_of(bench, batch)
            kernel.assign_sub(0.1 * tape.gradient(loss, kernel))
            return {"loss": loss}

        return step

    return step


def _two_optimizers(bench: Bench, other_loss: Any = Bench.mean) -> Any:
    model = bench.model
    first, last = model.layers[0].trainable_variables, model.layers[-1].trainable_variables
    optimizers = [tf.keras.optimizers.SGD(0.1), tf.keras.optimizers.SGD(0.05, momentum=0.9)]
    for optimizer, variables in zip(optimizers, (first, last), strict=True):
        optimizer.build(variables)

    def step(batch: Any) -> dict[str, Any]:
        with tf.GradientTape(persistent=True) as tape:
            loss, other = bench.mean(batch), other_loss(bench, batch)
        for optimizer, variables, one in zip(optimizers, (first, last), (loss, other), strict=True):
            gradients = tape.gradient(one, variables)
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}

    return step


def _late_part(bench: Bench) -> Any:
    """Of a mean, and of another kind of loss that has no weight before the first update."""

    def loss(batch: Any) -> Any:
        weight = tf.cast(bench.optimizer.iterations > 0, tf.float64)
        return bench.mean(batch) + weight * bench.average(batch)

    return bench.step(loss)


CALLS: list[int] = []
# Those that make a variable outside of the strategy's scope.
OUTSIDE: dict[str, Callable[[Bench], Any]] = {"assigns": _assigns}
STEPS: dict[str, Callable[[Bench], Any]] = {
    "mean": _step_of(Bench.mean),
    "sum": _step_of(lambda bench, batch: 0.05 * tf.reduce_sum(bench.of_each(batch))),
    "sum by global batch": _step_of(lambda bench, batch: tf.reduce_sum(bench.of_each(batch)) / BATCH),
    "average loss": _step_of(Bench.average),
    "divided inside": _step_of(
        lambda bench, batch: bench.mean(batch) / tf.distribute.get_strategy().num_replicas_in_sync
    ),
    "half a mean": _step_of(lambda bench, batch: 0.5 * bench.mean(batch)),
    "a third of a mean": _step_of(lambda bench, batch: bench.mean(batch) / 3),
    "loss object": _step_of(
        lambda bench, batch: tf.keras.losses.MeanSquaredError()(batch["y"], bench.model(batch["x"]))
    ),
    "loss object and mean": _step_of(
        lambda bench, batch: (
            tf.keras.losses.MeanSquaredError()(batch["y"], bench.model(batch["x"])) + bench.mean(batch)
        )
    ),
    "regularized mean": _step_of(lambda bench, batch: bench.mean(batch) + bench.penalty()),
    "regularized sum": _step_of(
        lambda bench, batch: (
            tf.reduce_sum(bench.of_each(batch)) / BATCH + tf.nn.scale_regularization_loss(bench.penalty())
        )
    ),
    "classes": _step_of(
        lambda bench, batch: tf.reduce_mean(
            tf.nn.softmax_cross_entropy_with_logits(
                tf.one_hot(batch["label"], NUM_CLASSES, dtype=tf.float64),
                bench.model(batch["x"], training=True),
            )
        )
    ),
    "weighted by a global": _step_of(lambda bench, batch: TWO * bench.mean(batch)),
    "partial": _partial,
    "divided outside": _divided_outside,
    "divided by self": _divided_by_self,
    "a part divided": _part_divided,
    "divided by workers": _divided_by_workers,
    "gradients divided": _gradients_divided,
    "divided by a global": _step_of(lambda bench, batch: bench.mean(batch) / TWO),
    "masked mean": _step_of(_masked),
    "boolean mask": _step_of(
        lambda bench, batch: tf.reduce_mean(tf.boolean_mask(bench.of_each(batch), batch["mask"] > 0))
    ),
    "masked sum": _step_of(lambda bench, batch: tf.reduce_sum(batch["mask"] * bench.of_each(batch)) / BATCH),
    "compares": _step_of(
        lambda bench, batch: bench.mean(batch) + tf.math.reduce_variance(bench.model(batch["x"]), axis=0)[0]
    ),
    "branch": _step_of(_branch),
    "loop over rows": _step_of(_loop_over_rows),
    "decorated": lambda bench: tf.function(bench.step(bench.mean)),
    "inner function": lambda bench: bench.step(tf.function(bench.mean)),
    "assigns on read": lambda bench: _assigns(
        bench, synchronization=tf.VariableSynchronization.ON_READ, aggregation=tf.VariableAggregation.MEAN
    ),
    "warm-up": lambda bench: _warm_up(bench, bench.mean),
    "metric": _metric,
    "norm, mean": _with(_normed("BatchNormalization")),
    "norm, average loss": _with(_normed("BatchNormalization"), Bench.average),
    "synchronized norm, mean": _with(_normed("BatchNormalization", synchronized=True)),
    "synchronized norm, average loss": _with(_normed("BatchNormalization", synchronized=True), Bench.average),
    "frozen norm": _with(_normed("BatchNormalization", trainable=False)),
    "layer norm": _with(_normed("LayerNormalization")),
    "adapted norm": _with(_adapted),
    "spectral norm": _with(lambda: [tf.keras.layers.SpectralNormalization(_dense())]),
    "dropout": _with(lambda: [_dense(), tf.keras.layers.Dropout(0.3)]),
    "convolution": _with(_convolved, Bench.average),
    "LSTM": _with(_recurrent("LSTM")),
    "embedding": _with(_embedded, column="token"),
    "embedding, average loss": _with(_embedded, Bench.average, column="token"),
    "masked GRU": _with(_masked_tokens, column="token"),
    "regularized layer": _with(
        _regularized, lambda bench, batch: bench.mean(batch) + tf.add_n(bench.model.losses)
    ),
    "regularized layer, scaled": _with(
        _regularized,
        lambda bench, batch: (
            bench.average(batch) + tf.nn.scale_regularization_loss(tf.add_n(bench.model.losses))
        ),
    ),
    "mixed_float16": _mixed("mixed_float16"),
    "mixed_bfloat16": _mixed("mixed_bfloat16"),
    "weighted mean": _step_of(
        lambda bench, batch: tf.reduce_mean((1 + batch["mask"]) * bench.of_each(batch))
    ),
    "log of sums": _step_of(lambda bench, batch: tf.reduce_logsumexp(bench.of_each(batch))),
    "contrast": _step_of(_contrasted),
    "counts": _counts,
    "assigns a mean": lambda bench: _assigns(bench, aggregation=tf.VariableAggregation.MEAN),
    "assigns a sum": lambda bench: _assigns(bench, aggregation=tf.VariableAggregation.SUM),
    "by hand, mean": _by_hand("MEAN", Bench.mean),
    "by hand, sum": _by_hand("SUM", Bench.mean),
    "reduces": lambda bench: bench.step(
        bench.mean, lambda gradients: tf.distribute.get_replica_context().all_reduce("SUM", gradients)
    ),
    "clips": lambda bench: bench.step(
        bench.mean, lambda gradients: tf.clip_by_global_norm(gradients, 0.1)[0]
    ),
    "clipped": _with(lambda: [_dense()], optimizer=lambda: tf.keras.optimizers.SGD(0.1, global_clipnorm=0.1)),
    "two optimizers": _two_optimizers,
    "two kinds of losses": lambda bench: _two_optimizers(bench, Bench.average),
    "warm-up of a sum": lambda bench: _warm_up(
        bench, lambda batch: 0.05 * tf.reduce_sum(bench.of_each(batch))
    ),
    "late part": _late_part,
    "calls Python": _calls_python,
    "fails in Python": _fails_in_python,
    "shown": _shown,
    "kinds shown": _kinds_shown,
    "text shown": lambda bench: bench.step(bench.mean, text=lambda batch, gradients: "text"),
    "nothing shown": lambda bench: bench.step(bench.mean, nothing=lambda batch, gradients: None),
    "metric, uneven": _metric,
}


# Those that the number of replicas matters to, those that the Keras matters to, and `train_step`s.
OF_NUMBERS = (
    *("mean", "average loss", "divided inside", "half a mean", "a third of a mean"),
    *("divided outside", "divided by workers", "divided by a global"),
)
OF_KERAS = (
    *("mean", "average loss", "classes", "divided outside", "masked mean", "metric", "shown", "decorated"),
    *("norm, mean", "norm, average loss", "synchronized norm, mean", "dropout", "spectral norm", "embedding"),
    *("masked GRU", "regularized layer", "mixed_float16", "clipped", "two optimizers"),
)
OF_FIT = tuple(
    f"fit, {kind}"
    for kind in (
        "mean",
        "average loss",
        "divided outside",
        "masked mean",
        "norm, mean",
        "synchronized norm, mean",
    )
)


def unlike_workers(ctx: Any, *, kind: str) -> dict[str, Any]:
    """Begins a loop that is another one on the second worker; returns the error."""
    index = ctx.task.index
    options = {"num_steps": 4, "steps_per_call": 2}
    if kind in options:
        options[kind] += index
    names = ["loss", "error"] if kind == "names" and index else ["loss"]
    data = tf.data.Dataset.from_tensor_slices(tf.ones([48])).batch(BATCH)

    def step(batch: Any) -> dict[str, Any]:
        return dict.fromkeys(names, tf.reduce_mean(batch))

    try:
        ctx.train_steps(step, data, **options)
    except UnsupportedError as error:
        return {"error": str(error)}
    return {"error": ""}


def unlike_train_steps(ctx: Any, *, is_eager: bool) -> dict[str, Any]:
    """Trains a model whose train_step returns other names on the second worker; returns the error."""
    import keras

    names = ["own", "other"] if ctx.task.index else ["own"]

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def train_step(self, data: Any) -> dict[str, Any]:
            loss = descend(self, self.optimizer, lambda: tf.reduce_mean(self(data[0])))
            return dict.fromkeys(names, loss)

    with ctx.strategy.scope():
        model = Own()
        model.compile("sgd", run_eagerly=is_eager)
    try:
        model.fit(tf.ones([8, 2]), tf.ones([8, 1]), batch_size=4, verbose=0)
    except UnsupportedError as error:
        return {"error": str(error)}
    return {"error": ""}


def parts_without_effects(ctx: Any) -> dict[str, Any]:
    """Returns which operations with effects a trace needs, and what a generator's numbers are in it."""
    from raydist import tf_private

    variable = tf.Variable(1.0)
    generator = tf.random.Generator.from_seed(1)

    def in_condition(x: Any) -> Any:
        return tf.cond(x[0] > 0, lambda: variable.assign_add(1.0) + x[0], lambda: x[0])

    functions = {
        "reads": lambda x: [x * variable],
        "assigns beside": lambda x: [x + 0.0 * x, variable.assign(2.0)][:1],
        "assigns in a condition": lambda x: [in_condition(x)],
        "aligns texts": lambda x: [
            tf.nn.ctc_loss(tf.ones([1, 2], tf.int32), tf.reshape(x, [5, 1, 3]), [2], [5], blank_index=0)
        ],
        "calls Python": lambda x: [tf.numpy_function(lambda one: one, [x], tf.float32, stateful=False)],
    }
    spec = tf.TensorSpec([None], tf.float32)
    traced = {name: tf_private.WithoutEffects(function, spec) for name, function in functions.items()}
    state = generator.state.numpy().tolist()

    def draws(x: Any) -> list[Any]:
        with tf_private.constant_draws(lambda constant: None):
            return [x + generator.normal([])]

    drawing = tf_private.WithoutEffects(draws, spec)
    drawing(tf.zeros([2]))
    return {
        "effects": {name: one.effects for name, one in traced.items()},
        "drawing": drawing.effects,
        "is_moved": generator.state.numpy().tolist() != state,
        "sum": float(tf.reduce_sum(traced["assigns beside"](tf.ones([3]))[0])),
        "value": float(variable.numpy()),
    }


def additive_losses(ctx: Any) -> dict[str, Any]:
    """Returns of losses whether their gradients are sums over the examples of each batch."""
    from raydist import tf_private
    from raydist.training.user_code import linearity

    weight = tf.Variable([[1.0], [2.0]])
    spec = {"x": tf.TensorSpec([None, 2], tf.float32), "mask": tf.TensorSpec([None], tf.float32)}
    mean, total = tf.reduce_mean, tf.reduce_sum

    def each(batch: Any) -> Any:
        return tf.square(batch["x"] @ weight)[:, 0]

    def in_a_loop(batch: Any) -> Any:
        losses = each(batch)
        sizes = tf.shape(losses)[0]
        _, found = tf.while_loop(
            lambda index, found: index < sizes,
            lambda index, found: (index + 1, found + losses[index]),
            [0, 0.0],
        )
        return found / 8

    losses = {
        "mean": lambda b: mean(each(b)),
        "sum": lambda b: total(each(b)) / 8,
        "regularized": lambda b: mean(each(b)) + tf.nn.l2_loss(weight),
        "masked sum": lambda b: total(b["mask"] * each(b)) / 8,
        "sum of a boolean mask": lambda b: total(tf.boolean_mask(each(b), b["mask"] > 0)) / 8,
        "quotient of each": lambda b: mean(each(b) / total(b["x"], axis=1)),
        "loop": in_a_loop,
        "best column": lambda b: mean(tf.math.top_k(b["x"], 1).values[:, 0] * each(b)),
        "hardest half": lambda b: mean(tf.math.top_k(each(b), tf.shape(b["x"])[0] // 2).values),
        "by rank": lambda b: mean(tf.sort(each(b)) * tf.range(tf.cast(tf.shape(b["x"])[0], tf.float32))),
        "argsort": lambda b: mean(tf.gather(each(b), tf.argsort(each(b))[: tf.shape(b["x"])[0] // 2])),
        "above the mean": lambda b: mean(tf.where(each(b) > mean(each(b)), each(b), 0.0)),
        "all but the largest": lambda b: mean(
            each(b) * tf.cast(each(b) < tf.reduce_max(each(b)), tf.float32)
        ),
        "masked mean": lambda b: total(b["mask"] * each(b)) / total(b["mask"]),
        "no NaN": lambda b: tf.math.divide_no_nan(total(b["mask"] * each(b)), total(b["mask"])),
        "mean of a boolean mask": lambda b: mean(tf.boolean_mask(each(b), b["mask"] > 0)),
        "counted": lambda b: total(each(b)) / tf.cast(tf.math.count_nonzero(b["mask"]), tf.float32),
        "reciprocal": lambda b: total(each(b)) * tf.math.reciprocal(total(b["mask"])),
        "weights with mean 1": lambda b: mean(each(b) * b["mask"] / mean(b["mask"])),
        "product": lambda b: mean(each(b)) * mean(b["mask"]),
        "root": lambda b: tf.sqrt(mean(each(b))),
        "centred": lambda b: mean(tf.square((b["x"] - mean(b["x"], axis=0)) @ weight)),
        "condition": lambda b: tf.cond(mean(each(b)) > 1, lambda: mean(each(b)), lambda: total(each(b))),
        "in a condition": lambda b: tf.cond(
            weight[0, 0] > 0, lambda: total(each(b)) / total(b["mask"]), lambda: 0.0
        ),
    }
    found = {}
    for name, loss in losses.items():
        kept: list[Any] = []

        def gradients(batch: Any, loss: Any = loss, kept: list[Any] = kept) -> list[Any]:
            with tf.GradientTape() as tape:
                value = loss(batch)
            kept[:] = [tape.gradient(value, weight)]
            return kept

        traced = tf_private.WithoutEffects(gradients, spec)
        sources = [(one, False) for one in traced.inputs]
        [dependence] = linearity.dependences(traced.graph, sources, kept)
        found[name] = dependence.is_additive
    return {"additive": found}


def custom_gradients(ctx: Any) -> dict[str, Any]:
    """Trains by a gradient that a `tf.custom_gradient` returns as it is, and by one that the step clips."""
    notes = {}
    for kind in ("custom", "clipped"):
        with ctx.strategy.scope():
            weight, optimizer = tf.Variable([[1.0], [2.0]]), tf.keras.optimizers.SGD(0.1)

        @tf.custom_gradient
        def raised(value: Any) -> Any:
            return tf.square(value), lambda upstream: 2 * value * upstream

        def step(batch: Any, kind: str = kind, weight: Any = weight, optimizer: Any = optimizer) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(batch @ raised(weight)))
            [gradient] = tape.gradient(loss, [weight])
            gradient = tf.clip_by_norm(gradient, 1.0) if kind == "clipped" else gradient
            optimizer.apply_gradients([(gradient, weight)])
            return {"loss": loss}

        before = set(notes_of(ctx))
        data = tf.data.Dataset.from_tensor_slices(tf.random.stateless_normal([64, 2], [1, 2]))
        ctx.train_steps(step, data.batch(16), num_steps=2)
        notes[kind] = [note for note in notes_of(ctx) if note not in before]
    return {"notes": notes}
