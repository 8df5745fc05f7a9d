"""Steps that give `compiled_loss` another structure than what `call` returns, as those of transformers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class Computed(keras.Model):
    """Its `call` computes the loss and returns it with the logits, and `compiled_loss` takes it as it is."""

    def __init__(self, *, is_built: bool) -> None:
        super().__init__()
        self.dense = layers.Dense(3)
        if is_built:  # as transformers build their models
            self.dense.build((None, 4))
            self.built = True

    def call(self, inputs: Any, training: bool = False) -> Any:
        logits = self.dense(inputs["x"])
        loss = keras.losses.sparse_categorical_crossentropy(inputs["labels"], logits, from_logits=True)
        return {"loss": loss, "logits": logits}

    def losses_of(self, inputs: Any, outputs: Any) -> Any:
        return self.compiled_loss(outputs["loss"], outputs["loss"])

    def train_step(self, inputs: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = self.losses_of(inputs, self(inputs, training=True))
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {one.name: one.result() for one in self.metrics}

    def test_step(self, inputs: Any) -> dict[str, Any]:
        self.losses_of(inputs, self(inputs))
        return {one.name: one.result() for one in self.metrics}


class OneOfTwo(Computed):
    """Has a loss for one of its outputs."""

    def losses_of(self, inputs: Any, outputs: Any) -> Any:
        return self.compiled_loss(inputs["labels"], outputs["logits"])


class TwoOfOne(Computed):
    """Makes two outputs of the one that `call` returns."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.dense(inputs["x"])

    def losses_of(self, inputs: Any, outputs: Any) -> Any:
        labels = inputs["labels"]
        return self.compiled_loss({"a": labels, "b": labels}, {"a": outputs, "b": 2.0 * outputs})


class Separate(TwoOfOne):
    """Gives metrics another structure than losses."""

    def train_step(self, inputs: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            outputs = self(inputs, training=True)
            loss = self.losses_of(inputs, outputs)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.compiled_metrics.update_state([inputs["labels"]] * 2, [outputs, -outputs])
        return {one.name: one.result() for one in self.metrics}


def given(loss: Any, _: Any) -> Any:
    return loss


def crossentropy(labels: Any, logits: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


# The loss of each kind, whether the layer is built before, and whether an evaluation comes first.
KINDS: tuple[tuple[type[Computed], Callable[[Any, Any], Any], bool, bool], ...] = (
    (Computed, given, True, False),
    (Computed, given, False, True),
    (OneOfTwo, crossentropy, False, False),
    (TwoOfOne, crossentropy, True, False),
    (Separate, crossentropy, False, False),
)


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    rng = np.random.default_rng(3)
    rows = {"x": rng.normal(size=(44, 4)).astype("float32"), "labels": rng.integers(0, 3, 44)}
    data = tf.data.Dataset.from_tensor_slices(rows).batch(16)
    values: dict[str, Any] = {}
    models = []
    for number, (kind, loss, is_built, evaluates_first) in enumerate(KINDS):
        keras.utils.set_random_seed(3)
        name = f"{number} {kind.__name__}"
        with ctx.strategy.scope():
            model = kind(is_built=is_built)
            metrics = ["accuracy"] if kind is Separate else []
            model.compile(keras.optimizers.SGD(0.1), loss=loss, metrics=metrics)
        if evaluates_first:
            values |= _evaluated(f"{name} before", model, data)
        history = ctx.fit(model, data, epochs=1, callbacks=callbacks)
        values |= {f"{name} {key}": one for key, one in history.history.items()}
        values |= _evaluated(f"{name} after", model, data)
        models.append(model)
    return outcome(values, models=models)


def _evaluated(name: str, model: Any, data: Any) -> dict[str, list[float]]:
    """Returns what `evaluate` returns: a number, or a list of several."""
    found = model.evaluate(data, verbose=0)
    return {f"{name} {np.shape(found)}": np.atleast_1d(found).tolist()}
