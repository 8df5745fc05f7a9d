"""The compiled model of a random program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.fuzz.data import CLASSES, LENGTH, WORDS
from tests.fuzz.program import KEEP, Program

keras = tf.keras
layers = keras.layers
IS_KERAS_3 = hasattr(keras, "ops")
OUTPUT = {
    "regression": (1, None),
    "binary": (1, "sigmoid"),
    "classes": (CLASSES, "softmax"),
}


def build(program: Program) -> Any:
    """Returns the model, not compiled."""
    inputs = _inputs(program)
    hidden = _hidden(program, inputs)
    units, activation = OUTPUT[program.task]
    outputs = [layers.Dense(units, activation=activation, name="first")(hidden)]
    if program.outputs == 2:
        outputs.append(layers.Dense(1, name="second")(hidden))
    functional = keras.Model(inputs, outputs[0] if len(outputs) == 1 else tuple(outputs))
    make = {"functional": None, "subclassed": Wrapped}.get(program.model) or {
        "own_train_step": OwnTrainStep,
        "add_loss": AddLoss,
        "compute_loss": OwnComputeLoss,
    }.get(program.model)
    model = functional if make is None else make(functional)
    if program.model == "own_train_step":
        model.shows_again = program.logs == "again"
    return model


def compiled(program: Program) -> Any:
    model = build(program)
    loss, metrics = (
        loss_of(program, reduction=program.reduction),
        [_metric(program, name) for name in program.metrics],
    )
    is_double = program.outputs == 2
    # tf_keras fails by itself where the last call of an epoch lacks a step.
    steps_per_execution = program.steps_per_execution if IS_KERAS_3 else 1
    model.compile(
        optimizer=optimizer_of(program),
        loss=[loss, "mse"] if is_double else loss,
        loss_weights=[0.7, 0.3] if is_double else None,
        metrics=[metrics, []] if is_double else metrics,
        steps_per_execution=steps_per_execution,
    )
    return model


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


def _inputs(program: Program) -> Any:
    made = {
        "vector": lambda: layers.Input((6,), name="vector"),
        "tokens": lambda: layers.Input((LENGTH,), dtype="int32", name="tokens"),
        "image": lambda: layers.Input((8, 8, 2), name="image"),
    }
    if program.inputs == "both":
        return {name: made[name]() for name in ("tokens", "vector")}
    return made[program.inputs]()


def _hidden(program: Program, inputs: Any) -> Any:
    if program.inputs == "vector":
        x = layers.Dense(5, activation="tanh")(inputs)
        for name in program.layers:
            x = VECTOR[name](x)
        return x
    if program.inputs == "image":
        x = layers.Conv2D(4, 3, padding="same", activation="tanh")(inputs)
        for name in program.layers:
            x = IMAGE[name](x)
        return layers.GlobalAveragePooling2D()(x)
    if program.inputs == "tokens":
        return _of_tokens(program, inputs)
    return layers.Concatenate()([_of_tokens(program, inputs["tokens"]), layers.Dense(3)(inputs["vector"])])


def _of_tokens(program: Program, tokens: Any) -> Any:
    parts = []
    for name in program.layers or ("average",):
        embedded = layers.Embedding(WORDS, 4, mask_zero=name.startswith("masked"))(tokens)
        parts.append(TOKENS[name](embedded))
    return parts[0] if len(parts) == 1 else layers.Concatenate()(parts)


def _residual(x: Any) -> Any:
    return layers.Add()([x, layers.Dense(x.shape[-1], activation="relu")(x)])


def _attention(x: Any) -> Any:
    # A bias of the keys has no gradient but rounding, from which some optimizers make whole steps.
    return layers.GlobalAveragePooling1D()(layers.MultiHeadAttention(2, 3, use_bias=False)(x, x))


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
}
IMAGE: dict[str, Callable[[Any], Any]] = {
    "conv": lambda x: layers.Conv2D(3, 3, activation="tanh")(x),
    "separable": lambda x: layers.SeparableConv2D(3, 2, padding="same")(x),
    "depthwise": lambda x: layers.DepthwiseConv2D(2, padding="same")(x),
    "group_norm": lambda x: layers.GroupNormalization(groups=1)(x),
    "average_pool": lambda x: layers.AveragePooling2D(2, padding="same")(x),
    "max_pool": lambda x: layers.MaxPooling2D(2, padding="same")(x),
}


def _own_loss(y_true: Any, y_pred: Any) -> Any:
    return tf.reduce_mean(tf.abs(y_true - y_pred) ** 1.5, axis=-1)


class _OwnFunction(keras.losses.Loss):  # type: ignore[misc]
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return _own_loss(y_true, y_pred)


class _OwnLoss(keras.losses.Loss):  # type: ignore[misc]
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(tf.square(y_true - y_pred), axis=-1)


def loss_of(program: Program, *, reduction: str) -> Any:
    """Returns the program's loss with that reduction: mean, sum or none."""
    losses = keras.losses
    if program.loss == "own_function" and reduction == "mean":
        return _own_loss
    make = {
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
    }[program.loss]
    return make() if reduction == "mean" else make(reduction=reduction)


def _metric(program: Program, name: str) -> Any:
    metrics = keras.metrics
    one_hot = program.loss != "sparse_crossentropy"
    make: dict[str, Callable[[], Any]] = {
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
    }
    return make[program.optimizer]()


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
