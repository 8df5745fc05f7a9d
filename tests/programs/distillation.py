"""Knowledge Distillation: a student learns from the labels and from a teacher, in compute_loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers


class Distiller(keras.Model):
    def __init__(self, student: Any, teacher: Any) -> None:
        super().__init__()
        self.teacher = teacher
        self.student = student

    def compile(
        self,
        optimizer: Any,
        metrics: Any,
        student_loss_fn: Any,
        distillation_loss_fn: Any,
        alpha: float = 0.1,
        temperature: float = 3,
    ) -> None:
        super().compile(optimizer=optimizer, metrics=metrics)
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn
        self.alpha = alpha
        self.temperature = temperature

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **kwargs: Any
    ) -> Any:
        teacher_pred = self.teacher(x, training=False)
        student_loss = self.student_loss_fn(y, y_pred)
        distillation_loss = self.distillation_loss_fn(
            tf.nn.softmax(teacher_pred / self.temperature, axis=1),
            tf.nn.softmax(y_pred / self.temperature, axis=1),
        ) * (self.temperature**2)
        return self.alpha * student_loss + (1 - self.alpha) * distillation_loss

    def call(self, x: Any) -> Any:
        return self.student(x)


def network(width: int, name: str) -> Any:
    return keras.Sequential(
        [keras.Input(shape=(6,)), layers.Dense(width, activation="relu"), layers.Dense(3)], name=name
    )


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(8)
    rng = np.random.default_rng(8)
    x = rng.normal(size=(93, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(axis=1)

    def data() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(93, seed=8).batch(32)

    with ctx.strategy.scope():
        teacher, student = network(16, "teacher"), network(4, "student")
        teacher.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    ctx.fit(teacher, data, epochs=2, callbacks=callbacks)
    with ctx.strategy.scope():
        distiller = Distiller(student=student, teacher=teacher)
        distiller.compile(
            optimizer=keras.optimizers.SGD(0.05),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
            student_loss_fn=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            distillation_loss_fn=keras.losses.KLDivergence(),
        )
    history = ctx.fit(distiller, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[distiller, teacher])
