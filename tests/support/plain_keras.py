"""Trainings whose weights show which examples Keras gives to which step, with raydist and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.in_tasks import flat


class Trainer:
    """One model, trained by Keras alone (`ctx` is None), by `model.fit` in a scope, or by `ctx.fit`."""

    def __init__(self, ctx: Any, *, by_context: bool, steps_per_execution: int = 1) -> None:
        self._ctx, self._by_context = ctx, by_context
        if ctx is None:
            self.model = _model(steps_per_execution)
            return
        with ctx.strategy.scope():
            self.model = _model(steps_per_execution)

    def fit(self, data: Any, **options: Any) -> None:
        if self._by_context:
            self._ctx.fit(self.model, data, **options)
        else:
            self.model.fit(data, verbose=0, **options)

    def evaluate(self, data: Any, **options: Any) -> None:
        if self._by_context:
            self._ctx.evaluate(self.model, data, **options)
        else:
            self.model.evaluate(data, verbose=0, **options)


def _model(steps_per_execution: int) -> Any:
    keras = tf.keras
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=steps_per_execution)
    return model


def _rows() -> tf.data.Dataset:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(18, 3)).astype("float32"), rng.normal(size=(18, 1)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((x, y))


def _shuffled() -> tf.data.Dataset:
    return _rows().shuffle(18, seed=3).batch(4)


def _epochs(trainer: Trainer) -> None:
    trainer.fit(_shuffled(), epochs=3)


def _shuffle_of_shuffled(trainer: Trainer) -> None:
    trainer.fit(_rows().shuffle(5, seed=3).shuffle(18, seed=4).batch(4), epochs=3)


def _repeated(trainer: Trainer) -> None:
    trainer.fit(_rows().shuffle(18, seed=3).repeat().batch(4), epochs=2, steps_per_epoch=6)


def _unknown_length(trainer: Trainer) -> None:
    trainer.fit(_rows().shuffle(18, seed=3).filter(lambda *_: True).batch(4), epochs=3)


def _validated_on_itself(trainer: Trainer) -> None:
    data = _shuffled()
    trainer.fit(data, epochs=3, validation_data=data)


def _in_a_row(trainer: Trainer) -> None:
    data = _shuffled()
    trainer.fit(data, epochs=2)
    trainer.evaluate(data)
    trainer.fit(data, epochs=2)


def _as_many_steps_as_batches(trainer: Trainer) -> None:
    data = _shuffled()
    trainer.fit(data, epochs=2, steps_per_epoch=5)
    trainer.fit(data, epochs=2)


def _fewer_steps(trainer: Trainer) -> None:
    data = _rows().shuffle(18, seed=3).batch(3)
    trainer.fit(data, epochs=4, steps_per_epoch=2)
    trainer.fit(data, epochs=1)


def _whole_calls(trainer: Trainer) -> None:
    trainer.fit(_shuffled(), epochs=2)
    endless = _rows().batch(4).repeat()
    trainer.fit(endless, epochs=2, steps_per_epoch=3, validation_data=endless, validation_steps=1)
    trainer.evaluate(endless, steps=3)


def _generator(trainer: Trainer) -> None:
    batches = (batch for _ in range(5) for batch in _rows().batch(4).as_numpy_iterator())
    trainer.fit(batches, epochs=2, steps_per_epoch=3)


# By name: the training, and its steps per execution.
TRAININGS: dict[str, tuple[Callable[[Trainer], None], int]] = {
    "epochs": (_epochs, 1),
    "shuffle of shuffled": (_shuffle_of_shuffled, 1),
    "repeated": (_repeated, 1),
    "unknown length": (_unknown_length, 1),
    "validated on itself": (_validated_on_itself, 1),
    "in a row": (_in_a_row, 1),
    "as many steps as batches": (_as_many_steps_as_batches, 1),
    "fewer steps": (_fewer_steps, 1),
    "whole calls": (_whole_calls, 2),
    "generator": (_generator, 2),
}


def train_all(ctx: Any) -> dict[str, Any]:
    """Returns the weights that each training leaves, by its name and by who trained."""
    found = {}
    for name, (train, steps_per_execution) in TRAININGS.items():
        for who, context, by_context in (("plain", None, False), ("fit", ctx, False), ("ctx.fit", ctx, True)):
            trainer = Trainer(context, by_context=by_context, steps_per_execution=steps_per_execution)
            train(trainer)
            found[f"{name} by {who}"] = flat(trainer.model)
    return found
