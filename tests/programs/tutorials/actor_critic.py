"""Actor-critic: an environment in `tf.numpy_function`, and episodes in a loop of a `@tf.function`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

MOST_STEPS = 6


class ActorCritic(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.common = layers.Dense(8, activation="relu")
        self.actor = layers.Dense(2)
        self.critic = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        x = self.common(inputs)
        return self.actor(x), self.critic(x)


class Cart:
    """Moves left or right; falls off at the end."""

    def reset(self) -> np.ndarray:
        self.state = np.array([0.1, -0.2, 0.05, 0.0], "float32")
        return self.state

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        push = np.array([0.1, 0.3, -0.05, 0.2], "float32") * (2 * action - 1)
        self.state = (0.9 * self.state + push).astype("float32")
        return self.state, np.array(1, "int32"), np.array(abs(self.state[0]) > 0.25, "int32")


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(11)
    cart = Cart()
    with ctx.strategy.scope():
        model = ActorCritic()
        model(tf.zeros((1, 4)))
        optimizer = keras.optimizers.Adam(learning_rate=0.01, epsilon=1e-5)
    huber_loss = keras.losses.Huber(reduction="sum")

    @tf.numpy_function(Tout=[tf.float32, tf.int32, tf.int32])
    def env_step(action: np.ndarray) -> Any:
        return cart.step(action)

    def run_episode(state: Any) -> Any:
        action_probs = tf.TensorArray(dtype=tf.float32, size=0, dynamic_size=True)
        values = tf.TensorArray(dtype=tf.float32, size=0, dynamic_size=True)
        rewards = tf.TensorArray(dtype=tf.int32, size=0, dynamic_size=True)
        shape = state.shape
        for t in tf.range(MOST_STEPS):
            logits, value = model(tf.expand_dims(state, 0))
            action = tf.argmax(logits, axis=-1)[0]  # a drawn one, there
            values = values.write(t, tf.squeeze(value))
            action_probs = action_probs.write(t, tf.nn.softmax(logits)[0, action])
            state, reward, done = env_step(action)
            state.set_shape(shape)
            rewards = rewards.write(t, reward)
            if tf.cast(done, tf.bool):
                break
        return action_probs.stack(), values.stack(), rewards.stack()

    def expected_return(rewards: Any) -> Any:
        n = tf.shape(rewards)[0]
        returns = tf.TensorArray(dtype=tf.float32, size=n)
        rewards = tf.cast(rewards[::-1], dtype=tf.float32)
        total = tf.constant(0.0)
        for i in tf.range(n):
            total = rewards[i] + 0.99 * total
            total.set_shape([])
            returns = returns.write(i, total)
        returns = returns.stack()[::-1]
        return (returns - tf.math.reduce_mean(returns)) / (tf.math.reduce_std(returns) + 1e-6)

    @tf.function
    def train_step(state: Any) -> Any:
        with tf.GradientTape() as tape:
            action_probs, values, rewards = run_episode(state)
            returns = expected_return(rewards)
            action_probs, values, returns = (
                tf.expand_dims(one, 1) for one in (action_probs, values, returns)
            )
            advantage = returns - values
            actor_loss = -tf.math.reduce_sum(tf.math.log(action_probs) * advantage)
            loss = actor_loss + huber_loss(values, returns)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return tf.math.reduce_sum(rewards)

    rewards = [int(train_step(tf.constant(cart.reset()))) for _ in range(8)]
    return outcome({"rewards": rewards}, models=[model], optimizers=[optimizer])
