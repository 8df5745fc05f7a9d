"""The compiled model of a random program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fuzz.data import CLASSES, LENGTH, OUTPUTS, SPARSE_LOSSES, WORDS
from tests.fuzz.program import KEEP, Program

keras = tf.keras
layers = keras.layers
IS_KERAS_3 = hasattr(keras, "ops")
OUTPUT = {
    "regression": (1, None),
    "binary": (1, "sigmoid"),
    "classes": (CLASSES, "softmax"),
    "each": (CLASSES, "softmax"),
}


def build(program: Program) -> Any:
    """Returns the model, not compiled."""
    inputs = _inputs(program)
    hidden = _hidden(program, inputs)
    units, activation = OUTPUT[program.task]
    outputs = [layers.Dense(units, activation=activation, name=OUTPUTS[0])(hidden)]
    if program.outputs == 2:
        outputs.append(layers.Dense(1, name=OUTPUTS[1])(hidden))
    if program.model == "named":
        return keras.Model(inputs, dict(zip(OUTPUTS, outputs, strict=False)))
    functional = keras.Model(inputs, outputs[0] if len(outputs) == 1 else tuple(outputs))
    if program.model == "nested":
        return keras.Model(inputs, functional(inputs))
    if program.model == "sequential" and program.outputs == 1 and program.inputs not in ("both", "pair"):
        return keras.Sequential([functional])
    make = {
        "subclassed": Wrapped,
        "own_train_step": OwnTrainStep,
        "add_loss": AddLoss,
        "compute_loss": OwnComputeLoss,
        "two_optimizers": TwoOptimizers,
        "penalty": Penalty,
        "own_metrics": OwnMetrics,
        "unlabeled": Unlabeled,
    }.get(program.model)
    model = functional if make is None else _decorated(make, program.decorated)(functional)
    if isinstance(model, OwnTrainStep):
        model.shows_again = program.logs == "again"
    if isinstance(model, TwoOptimizers):
        model.others = [optimizer_of(program)]
    return model


def _decorated(make: type[Wrapped], name: str) -> type[Wrapped]:
    """Returns a class of models with one of its own methods under `@tf.function`, if it has that."""
    own = {key for one in make.__mro__ if issubclass(one, Wrapped) for key in vars(one)}
    return type(make.__name__, (make,), {name: tf.function(getattr(make, name))}) if name in own else make


def compiled(program: Program) -> Any:
    model = build(program)
    compile_model(program, model)
    return model


def compile_model(program: Program, model: Any) -> None:
    loss, metrics = (
        loss_of(program, reduction=program.reduction),
        [_metric(program, name) for name in program.metrics],
    )
    if isinstance(model, OwnMetrics):
        model.loss_fn = loss_of(program, reduction="none")
    if isinstance(model, (OwnMetrics, Unlabeled)):
        model.compile(optimizer=optimizer_of(program), run_eagerly=program.run_eagerly)
        return
    is_double = program.outputs == 2
    # tf_keras fails by itself where the last call of an epoch lacks a step.
    steps_per_execution = program.steps_per_execution if IS_KERAS_3 else 1
    losses = [loss, "mse"] if is_double else loss
    weights = [0.7, 0.3] if is_double else None
    measured: Any = [metrics, []] if is_double else metrics
    if program.model == "named":
        names = OUTPUTS[: program.outputs]
        losses = dict(zip(names, losses if is_double else [loss], strict=True))
        weights = dict(zip(names, weights, strict=True)) if weights else None
        measured = {OUTPUTS[0]: metrics}
    model.compile(
        optimizer=optimizer_of(program),
        loss=losses,
        loss_weights=weights,
        steps_per_execution=steps_per_execution,
        run_eagerly=program.run_eagerly,
        **{"weighted_metrics" if program.metrics_weighted else "metrics": measured},
    )
    for other in getattr(model, "others", ()):
        other.build(model.trainable_variables[1::2])


class Wrapped(keras.Model):  # type: ignore[misc]
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.inner(inputs, training=training)


class AddLoss(Wrapped):
    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = self.inner(inputs, training=training)
        first = tf.nest.flatten(outputs)[0]
        self.add_loss(0.01 * tf.reduce_mean(tf.square(first)))
        return outputs


class OwnComputeLoss(Wrapped):
    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **more: Any
    ) -> Any:
        loss = super().compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **more)
        first = tf.nest.flatten(y_pred)[0]
        return loss + 0.1 * tf.reduce_mean(tf.square(first))


class OwnTrainStep(Wrapped):
    shows_again = False

    def train_step(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._logs(loss, y, y_pred, sample_weight)

    def test_step(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        return self._logs(loss, y, y_pred, sample_weight)

    def _logs(self, loss: Any, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        logs = {}
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            elif not metric.name.endswith("_loss"):  # compute_loss has updated those of outputs
                if isinstance(y, tuple) and not IS_KERAS_3:  # plain tf_keras has no compiled ones here
                    continue
                metric.update_state(y, y_pred, sample_weight=sample_weight)
            logs[metric.name] = metric.result()
        if self.shows_again and "loss" in logs:
            logs["loss_again"] = logs["loss"]
        return logs


class TwoOptimizers(OwnTrainStep):
    """Each optimizer has every other variable; the second one is updated by a loss of its own."""

    def train_step(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
            second = loss + 0.1 * tf.reduce_mean(tf.square(tf.nest.flatten(y_pred)[0]))
        variables = self.trainable_variables
        for optimizer, part, value in (
            (self.optimizer, variables[::2], loss),
            (self.others[0], variables[1::2], second),
        ):
            gradients = tape.gradient(value, part)
            optimizer.apply_gradients(zip(gradients, part, strict=True))
        return self._logs(loss, y, y_pred, sample_weight)


class Penalty(OwnTrainStep):
    """Adds the norm of its inputs' gradient, as a Wasserstein GAN does, where its inputs are numbers."""

    def train_step(self, data: Any) -> Any:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        numbers = [one for one in tf.nest.flatten(x) if one.dtype.is_floating]
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(numbers)
                y_pred = self(x, training=True)
                whole = tf.reduce_sum(tf.nest.flatten(y_pred)[0])
            slopes = inner.gradient(whole, numbers)
            norms = [tf.norm(tf.reshape(one, (tf.shape(one)[0], -1)) + 0.1, axis=1) for one in slopes]
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
            for one in norms:
                loss += 0.5 * tf.reduce_mean((one - 1.0) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._logs(loss, y, y_pred, sample_weight)


class OwnMetrics(Wrapped):
    """Has nothing compiled but its optimizer: the loss and the metrics are attributes of its own."""

    loss_fn: Any = None

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.spread = keras.metrics.MeanAbsoluteError(name="spread")

    @property
    def metrics(self) -> list[Any]:
        return [self.loss_tracker, self.spread]

    def train_step(self, data: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self._loss(y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self._logs(loss, y_pred)

    def test_step(self, data: Any) -> Any:
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        y_pred = self(x, training=False)
        return self._logs(self._loss(y, y_pred), y_pred)

    def _loss(self, y: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(self.loss_fn(tf.nest.flatten(y)[0], tf.nest.flatten(y_pred)[0]))

    def _logs(self, loss: Any, y_pred: Any) -> Any:
        first = tf.nest.flatten(y_pred)[0]
        self.loss_tracker.update_state(loss)
        self.spread.update_state(tf.zeros_like(first), first)
        return {one.name: one.result() for one in self.metrics}


class Unlabeled(Wrapped):
    """Has no loss but what its call adds, as an autoencoder may."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        outputs = self.inner(inputs, training=training)
        first = tf.nest.flatten(outputs)[0]
        self.add_loss(tf.reduce_mean(tf.square(first - 0.3)))
        return outputs


def has_own_layers(program: Program) -> bool:
    is_decorated = program.decorated == "layer"
    return is_decorated or any(name.startswith("own") or name == "masked_own" for name in program.layers)


def own_objects() -> dict[str, Any]:
    """What a file of a model names and Keras does not know."""
    own = (_OwnFunction, _OwnLoss, _Quantile, _Rows, _OwnMean)
    functions = (own_loss, scalar_mean, scalar_sum)
    return {one.__name__: one for one in (*own, *functions)}


class _OwnScale(layers.Layer):  # type: ignore[misc]
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones")

    def call(self, x: Any) -> Any:
        return x * self.scale


class _DecoratedScale(_OwnScale):
    call = tf.function(_OwnScale.call)


class _OwnCounter(_OwnScale):
    """Counts its calls, and scales by their number."""

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.count.assign_add(tf.ones((), x.dtype))
        return x * self.scale / (1.0 + 0.1 * self.count)


class _OwnActivityLoss(_OwnScale):
    def call(self, x: Any) -> Any:
        self.add_loss(0.05 * tf.reduce_mean(tf.abs(x)))
        return super().call(x)


class _Masked(layers.Layer):  # type: ignore[misc]
    """A mean over those positions that the mask leaves."""

    supports_masking = True

    def compute_mask(self, inputs: Any, mask: Any = None) -> None:
        return None

    def call(self, x: Any, mask: Any = None) -> Any:
        weights = tf.cast(mask, x.dtype)[..., None]
        return tf.reduce_sum(x * weights, axis=1) / tf.reduce_sum(weights, axis=1)


def _inputs(program: Program) -> Any:
    made = {
        "vector": lambda: layers.Input((6,), name="vector"),
        "tokens": lambda: layers.Input(
            (None if program.data == "padded" else LENGTH,), dtype="int32", name="tokens"
        ),
        "image": lambda: layers.Input((8, 8, 2), name="image"),
        "sparse": lambda: layers.Input((6,), sparse=True, name="sparse"),
        "text": lambda: layers.Input((1,), dtype="string", name="text"),
    }
    if program.inputs == "both":
        return {name: made[name]() for name in ("tokens", "vector")}
    if program.inputs == "pair":
        return (made["tokens"](), made["vector"]())
    return made[program.inputs]()


def _hidden(program: Program, inputs: Any) -> Any:
    if program.inputs in ("vector", "sparse"):
        x = layers.Dense(5, activation="tanh")(inputs)
        for name in program.layers:
            x = VECTOR[name](x)
        return _DecoratedScale()(x) if program.decorated == "layer" else x
    if program.inputs == "text":
        vectorize = layers.TextVectorization(max_tokens=WORDS, output_sequence_length=LENGTH)
        vectorize.adapt([f"word{number}" for number in range(WORDS)])
        return _of_tokens(program, vectorize(inputs))
    if program.inputs == "image":
        x = layers.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
        for name in program.layers:
            x = (EACH_IMAGE if program.task == "each" else IMAGE)[name](x)
        x = _DecoratedScale()(x) if program.decorated == "layer" else x
        return x if program.task == "each" else layers.GlobalAveragePooling2D()(x)
    if program.inputs == "tokens":
        return _of_each_token(program, inputs) if program.task == "each" else _of_tokens(program, inputs)
    tokens, vector = inputs if program.inputs == "pair" else (inputs["tokens"], inputs["vector"])
    return layers.Concatenate()([_of_tokens(program, tokens), layers.Dense(3)(vector)])


def _of_each_token(program: Program, tokens: Any) -> Any:
    is_masked = any(name.startswith("masked") for name in program.layers)
    x = layers.Embedding(WORDS, 4, mask_zero=is_masked)(tokens)
    for name in program.layers:
        x = EACH_TOKEN[name](x)
    return x


def _of_tokens(program: Program, tokens: Any) -> Any:
    parts = []
    tied = layers.Embedding(WORDS, 4)
    for name in program.layers or ("average",):
        if name == "bag":
            words = layers.CategoryEncoding(WORDS, output_mode="multi_hot")(tokens)
            parts.append(layers.Dense(3)(words))
            continue
        regularizer = keras.regularizers.L2(0.01) if name == "regularized" else None
        make = layers.Embedding(
            WORDS, 4, mask_zero=name.startswith("masked"), embeddings_regularizer=regularizer
        )
        parts.append(TOKENS[name]((tied if name == "tied" else make)(tokens)))
        if name == "tied":
            parts.append(layers.GlobalMaxPooling1D()(tied(tokens)))
    return parts[0] if len(parts) == 1 else layers.Concatenate()(parts)


def _residual(x: Any) -> Any:
    return layers.Add()([x, layers.Dense(x.shape[-1], activation="relu")(x)])


def _attention(x: Any) -> Any:
    # A bias of the keys has no gradient but rounding, from which some optimizers make whole steps.
    return layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 3, use_bias=False)(x, x))


def _adapted(x: Any) -> Any:
    layer = layers.Normalization()
    layer.adapt(np.random.default_rng(1).normal(0.3, 2.0, size=(40, x.shape[-1])).astype(x.dtype))
    return layer(x)


def _twice(layer: Any, x: Any) -> Any:
    return layer(layer(x))


def _with_positions(x: Any) -> Any:
    return _Positions()(x)


class _Positions(layers.Layer):  # type: ignore[misc]
    """Adds an embedding of each position, which all examples look up."""

    def build(self, shape: Any) -> None:
        self.embedding = layers.Embedding(LENGTH, shape[-1])
        self.embedding.build(None)

    def call(self, x: Any) -> Any:
        return x + self.embedding(tf.range(tf.shape(x)[1]))


VECTOR: dict[str, Callable[[Any], Any]] = {
    "dense": lambda x: layers.Dense(6, activation="softplus")(x),
    "tanh": lambda x: layers.Activation("tanh")(x),
    "layer_norm": lambda x: layers.LayerNormalization()(x),
    "prelu": lambda x: layers.PReLU()(x),
    "residual": _residual,
    "regularized": lambda x: layers.Dense(
        4, kernel_regularizer=keras.regularizers.L2(0.01), activity_regularizer=keras.regularizers.L2(0.01)
    )(x),
    "constrained": lambda x: layers.Dense(4, kernel_constraint=keras.constraints.MaxNorm(0.7))(x),
    "units": lambda x: layers.UnitNormalization()(x),
    "einsum": lambda x: layers.EinsumDense("ab,bc->ac", output_shape=5, bias_axes="c")(x),
    "gate": lambda x: layers.Multiply()([x, layers.Dense(x.shape[-1], activation="sigmoid")(x)]),
    "twice": lambda x: _twice(layers.Dense(x.shape[-1], activation="tanh"), x),
    "frozen": lambda x: layers.Dense(5, trainable=False)(x),
    "spectral": lambda x: layers.SpectralNormalization(layers.Dense(5))(x),
    "orthogonal": lambda x: layers.Dense(
        4, kernel_regularizer=keras.regularizers.OrthogonalRegularizer(0.01), bias_regularizer="l1"
    )(x),
    "unit_norm": lambda x: layers.Dense(4, kernel_constraint="unit_norm", bias_constraint="non_neg")(x),
    "adapted": _adapted,
    "normalization": lambda x: layers.Normalization(mean=0.1, variance=2.0)(x),
    "own_scale": lambda x: _OwnScale()(x),
    "own_counter": lambda x: _OwnCounter()(x),
    "own_loss": lambda x: _OwnActivityLoss()(x),
    "buckets": lambda x: layers.Concatenate()(
        [x, layers.Embedding(4, 2)(layers.Discretization(bin_boundaries=[-0.5, 0.0, 0.5])(x[:, 0]))]
    ),
    "lambda": lambda x: layers.Lambda(lambda one: one * 2.0 - 0.1)(x),
    "sequence": lambda x: layers.SimpleRNN(4)(layers.RepeatVector(3)(x)),
}
TOKENS: dict[str, Callable[[Any], Any]] = {
    "average": lambda x: layers.GlobalAveragePooling1D()(x),
    "masked_average": lambda x: layers.GlobalAveragePooling1D()(x),
    "masked_lstm": lambda x: layers.LSTM(3)(x),
    "gru": lambda x: layers.GRU(3)(x),
    "bilstm": lambda x: layers.Bidirectional(layers.LSTM(2))(x),
    "conv1d": lambda x: layers.GlobalMaxPooling1D()(layers.Conv1D(3, 2)(x)),
    "attention": _attention,
    "flatten": lambda x: layers.Flatten()(x),
    "simple_rnn": lambda x: layers.SimpleRNN(3)(x),
    "distributed": lambda x: layers.GlobalAveragePooling1D()(layers.TimeDistributed(layers.Dense(3))(x)),
    "global_max": lambda x: layers.GlobalMaxPooling1D()(x),
    "separable": lambda x: layers.GlobalAveragePooling1D()(layers.SeparableConv1D(3, 2)(x)),
    "tied": lambda x: layers.GlobalAveragePooling1D()(x),
    "transpose": lambda x: layers.GlobalAveragePooling1D()(layers.Conv1DTranspose(3, 2, strides=2)(x)),
    "regularized": lambda x: layers.GlobalAveragePooling1D()(x),
    "positions": lambda x: layers.GlobalMaxPooling1D()(_with_positions(x)),
    "masked_attention": lambda x: layers.GlobalAveragePooling1D()(
        layers.MultiHeadAttention(2, 3, use_bias=False)(x, x)
    ),
    "stacked": lambda x: layers.GRU(3)(layers.LSTM(3, return_sequences=True)(x)),
    "masked_own": lambda x: _Masked()(x),
}
EACH_TOKEN: dict[str, Callable[[Any], Any]] = {
    "masked_lstm": lambda x: layers.LSTM(3, return_sequences=True)(x),
    "gru": lambda x: layers.GRU(3, return_sequences=True)(x),
    "dense": lambda x: layers.Dense(4, activation="tanh")(x),
    "conv": lambda x: layers.Conv1D(4, 3, padding="same")(x),
    "attention": lambda x: layers.MultiHeadAttention(2, 3, use_bias=False)(x, x),
    "positions": lambda x: _with_positions(x),
}
IMAGE: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: layers.Conv2D(3, 3, activation="tanh")(x),
    "separable": lambda x: layers.SeparableConv2D(3, 2, padding="same")(x),
    "depthwise": lambda x: layers.DepthwiseConv2D(2, padding="same")(x),
    "group_norm": lambda x: layers.GroupNormalization(groups=1)(x),
    "average_pool": lambda x: layers.AveragePooling2D(2, padding="same")(x),
    "max_pool": lambda x: layers.MaxPooling2D(2, padding="same")(x),
    "transpose": lambda x: layers.Conv2DTranspose(3, 2, strides=2)(x),
    "upsample": lambda x: layers.UpSampling2D(2, interpolation="bilinear")(x),
    "pad": lambda x: layers.Conv2D(3, 3)(layers.ZeroPadding2D(1)(x)),
    "global": lambda x: layers.Multiply()([x, layers.GlobalAveragePooling2D(keepdims=True)(x)]),
    "spectral": lambda x: layers.SpectralNormalization(layers.Conv2D(3, 2, padding="same"))(x),
    "flat": lambda x: layers.Reshape((1, 1, 4))(layers.Dense(4)(layers.Flatten()(x))),
    "own_scale": lambda x: _OwnScale()(x),
    "shared": lambda x: _twice(layers.Conv2D(x.shape[-1], 3, padding="same", activation="tanh"), x),
    "rescaled": lambda x: layers.Rescaling(0.5, offset=0.1)(x),
}
EACH_IMAGE: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: layers.Conv2D(4, 3, padding="same", activation="tanh")(x),
    "skip": lambda x: layers.Concatenate()([x, layers.Conv2D(2, 1)(x)]),
    "group_norm": lambda x: layers.GroupNormalization(groups=1)(x),
    "u": lambda x: layers.Concatenate()(
        [x, layers.UpSampling2D(2)(layers.Conv2D(3, 3, strides=2, padding="same")(x))]
    ),
}


def own_loss(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.abs(y_true - y_pred) ** 1.5, axis=-1)


def scalar_mean(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.square(y_true - y_pred))


def scalar_sum(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_sum(tf.square(y_true - y_pred))


class _OwnMean(keras.metrics.Metric):  # type: ignore[misc]
    """A mean whose sum and count are variables of its own."""

    def __init__(self, name: str = "own_mean", **more: Any) -> None:
        super().__init__(name=name, **more)
        self.sum = self.add_weight(name="sum", initializer="zeros")
        self.weight = self.add_weight(name="weight", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        each = tf.reduce_mean(tf.abs(tf.cast(y_pred, self.sum.dtype)), axis=-1)
        weights = tf.ones_like(each) if sample_weight is None else tf.cast(sample_weight, each.dtype)
        weights = tf.reshape(weights, tf.shape(each))
        self.sum.assign_add(tf.reduce_sum(each * weights))
        self.weight.assign_add(tf.reduce_sum(weights))

    def result(self) -> Any:
        return self.sum / self.weight


class _Quantile(keras.losses.Loss):  # type: ignore[misc]
    """Has an argument of its own."""

    def __init__(self, quantile: float = 0.7, name: str = "quantile", **more: Any) -> None:
        super().__init__(name=name, **more)
        self.quantile = quantile

    def call(self, y_true: Any, y_pred: Any) -> Any:
        error = y_true - y_pred
        return tf.reduce_mean(tf.maximum(self.quantile * error, (self.quantile - 1.0) * error), axis=-1)


class _OwnFunction(keras.losses.Loss):  # type: ignore[misc]
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return own_loss(y_true, y_pred)


class _OwnLoss(keras.losses.Loss):  # type: ignore[misc]
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(tf.square(y_true - y_pred), axis=-1)


def loss_of(program: Program, *, reduction: str) -> Any:
    """Returns the program's loss with that reduction: mean, sum or none."""
    losses = keras.losses
    if program.loss == "own_function" and reduction == "mean":
        return tf.function(own_loss) if program.decorated == "loss" else own_loss
    of_mean = {
        "function": losses.get("mean_absolute_error"),
        "scalar_mean": scalar_mean,
        "scalar_sum": scalar_sum,
        "name": "binary_crossentropy" if program.task == "binary" else "mse",
    }
    if program.loss in of_mean and reduction == "mean":
        return of_mean[program.loss]
    if program.loss in of_mean:  # what is no object has no reduction
        return (losses.BinaryCrossentropy if program.task == "binary" else losses.MeanSquaredError)(
            reduction=reduction
        )
    make: dict[str, Callable[..., Any]] = {
        "mse": losses.MeanSquaredError,
        "mae": losses.MeanAbsoluteError,
        "huber": losses.Huber,
        "log_cosh": losses.LogCosh,
        "own_class": _OwnLoss,
        "own_function": _OwnFunction,
        "binary_crossentropy": losses.BinaryCrossentropy,
        "hinge": losses.Hinge,
        "focal": losses.BinaryFocalCrossentropy,
        "sparse_crossentropy": losses.SparseCategoricalCrossentropy,
        "crossentropy": losses.CategoricalCrossentropy,
        "kl_divergence": losses.KLDivergence,
        "msle": losses.MeanSquaredLogarithmicError,
        "mape": losses.MeanAbsolutePercentageError,
        "quantile": _Quantile,
        "squared_hinge": losses.SquaredHinge,
        "logits": functools.partial(losses.BinaryCrossentropy, from_logits=True),
        "smoothed": functools.partial(losses.BinaryCrossentropy, label_smoothing=0.1),
        "smoothed_classes": functools.partial(losses.CategoricalCrossentropy, label_smoothing=0.1),
        "categorical_hinge": losses.CategoricalHinge,
        "categorical_focal": losses.CategoricalFocalCrossentropy,
        "dice": getattr(losses, "Dice", losses.CategoricalCrossentropy),
        "ignoring": functools.partial(losses.SparseCategoricalCrossentropy, ignore_class=0),
    }
    return make[program.loss]() if reduction == "mean" else make[program.loss](reduction=reduction)


def _metric(program: Program, name: str) -> Any:
    metrics = keras.metrics
    one_hot = program.loss not in SPARSE_LOSSES
    names = {"regression": "mae", "binary": "accuracy"}
    make: dict[str, Callable[[], Any]] = {
        "function": lambda: keras.losses.get("log_cosh"),
        "names": lambda: names.get(program.task, "accuracy"),
        "msle": metrics.MeanSquaredLogarithmicError,
        "own_mean": _OwnMean,
        "recall": lambda: metrics.Recall(thresholds=[0.3, 0.6]),
        "hinge": metrics.Hinge,
        "crossentropy": metrics.CategoricalCrossentropy if one_hot else metrics.SparseCategoricalCrossentropy,
        "f1": lambda: (metrics.F1Score if one_hot else metrics.SparseCategoricalAccuracy)(),
        "mae": metrics.MeanAbsoluteError,
        "rmse": metrics.RootMeanSquaredError,
        "r2": metrics.R2Score,
        "cosine": metrics.CosineSimilarity,
        "binary_accuracy": metrics.BinaryAccuracy,
        "auc": metrics.AUC,
        "precision": metrics.Precision,
        "sparse_accuracy": (metrics.CategoricalAccuracy if one_hot else metrics.SparseCategoricalAccuracy),
        "rows": _Rows,
        "iou": lambda: metrics.MeanIoU(CLASSES, sparse_y_true=not one_hot, sparse_y_pred=False),
    }
    return make[name]()


class _Rows(keras.metrics.Metric):  # type: ignore[misc]
    """How many examples there are, and the sum of what is predicted for them."""

    def __init__(self) -> None:
        super().__init__(name="rows")
        self.count = self.add_weight(name="count", initializer="zeros")
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.count.assign_add(tf.cast(tf.shape(y_pred)[0], self.count.dtype))
        self.total.assign_add(tf.cast(tf.reduce_sum(y_pred), self.total.dtype))

    def result(self) -> dict[str, Any]:
        return {"rows": self.count + 0, "predicted": self.total + 0}


def optimizer_of(program: Program) -> Any:
    """Returns a new optimizer of the program's."""
    optimizers = keras.optimizers
    rate = _rate(program)
    more: dict[str, Any] = {} if program.clipping == KEEP else {program.clipping: 0.5}
    if program.ema:
        more |= {"use_ema": True, "ema_momentum": 0.9}
    if program.decay and program.optimizer != "adamw":
        more["weight_decay"] = 0.01
    make: dict[str, Callable[[], Any]] = {
        "sgd": lambda: optimizers.SGD(rate, **more),
        "momentum": lambda: optimizers.SGD(rate, momentum=0.9, **more),
        "nesterov": lambda: optimizers.SGD(rate, momentum=0.9, nesterov=True, **more),
        "adam": lambda: optimizers.Adam(rate, **more),
        "amsgrad": lambda: optimizers.Adam(rate, amsgrad=True, **more),
        "adamw": lambda: optimizers.AdamW(rate, **more),
        "rmsprop": lambda: optimizers.RMSprop(rate, **more),
        "centered_rmsprop": lambda: optimizers.RMSprop(rate, momentum=0.9, centered=True, **more),
        "adagrad": lambda: optimizers.Adagrad(rate, **more),
        "adadelta": lambda: optimizers.Adadelta(rate, **more),
        "adamax": lambda: optimizers.Adamax(rate, **more),
        "nadam": lambda: optimizers.Nadam(rate, **more),
        "ftrl": lambda: optimizers.Ftrl(rate, **more),
        "lion": lambda: optimizers.Lion(rate, **more),
        "lamb": lambda: getattr(optimizers, "Lamb", optimizers.Adam)(rate, **more),
        "adafactor": lambda: optimizers.Adafactor(rate, **more),
        "scaled": lambda: _scaled(optimizers.Adam(rate, **more)),
        "muon": lambda: getattr(optimizers, "Muon", optimizers.Adam)(rate, **more),
        "name": lambda: optimizers.get("adam"),
    }
    return make[program.optimizer]()


def _scaled(optimizer: Any) -> Any:
    make = getattr(keras.optimizers, "LossScaleOptimizer", keras.mixed_precision.LossScaleOptimizer)
    return make(optimizer)


def _rate(program: Program) -> Any:
    if program.is_still:
        return 0.0
    schedules = keras.optimizers.schedules
    if program.optimizer == "nadam":  # tf_keras's takes no schedule
        return 0.02
    return {
        KEEP: lambda: 0.02,
        "cosine": lambda: schedules.CosineDecay(0.02, 8),
        "exponential": lambda: schedules.ExponentialDecay(0.02, 3, 0.7),
        "piecewise": lambda: schedules.PiecewiseConstantDecay([2, 4], [0.02, 0.01, 0.005]),
    }[program.schedule]()
