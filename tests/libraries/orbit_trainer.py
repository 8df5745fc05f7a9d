"""Orbit: its controller and trainer, which drive the strategy by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import orbit
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome


class Trainer(orbit.StandardTrainer):  # type: ignore[misc]
    def __init__(self, strategy: Any, model: Any, optimizer: Any, data: Any) -> None:
        self.strategy, self.model, self.optimizer = strategy, model, optimizer
        self.loss = tf.keras.metrics.Mean("loss", dtype=tf.float32)
        super().__init__(orbit.utils.make_distributed_dataset(strategy, data))

    def train_loop_begin(self) -> None:
        self.loss.reset_state()

    def train_step(self, iterator: Any) -> None:
        def step(batch: Any) -> None:
            x, y = batch
            with tf.GradientTape() as tape:
                losses = tf.square(y - self.model(x, training=True))[:, 0]
                loss = tf.nn.compute_average_loss(losses, global_batch_size=16)
            gradients = tape.gradient(loss, self.model.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
            self.loss.update_state(losses)

        self.strategy.run(step, args=(next(iterator),))

    def train_loop_end(self) -> dict[str, Any]:
        return {"loss": self.loss.result()}


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(11)
    rng = np.random.default_rng(11)
    x = rng.normal(size=(48, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    losses: list[float] = []

    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(48, seed=11).batch(16).repeat()
    with ctx.strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(4, activation="relu"), tf.keras.layers.Dense(1)])
        model.build((None, 3))
        optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.9)
        trainer = Trainer(ctx.strategy, model, optimizer, data)
        controller = orbit.Controller(
            strategy=ctx.strategy,
            trainer=trainer,
            global_step=optimizer.iterations,
            steps_per_loop=3,
            train_actions=[lambda output: losses.append(float(output["loss"]))],
        )
    controller.train(steps=9)
    return outcome({"loss": losses}, models=[model], optimizers=[optimizer])
