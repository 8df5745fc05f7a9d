"""Graph attention network for node classification: the graph is in the model, the batch has its nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests.programs.outcome import Outcome, outcome

keras = tf.keras
layers = keras.layers

NUM_NODES = 50
NUM_CLASSES = 3


class GraphAttention(layers.Layer):
    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units

    def build(self, input_shape: Any) -> None:
        features = input_shape[0][-1]
        self.kernel = self.add_weight(
            shape=(features, self.units), trainable=True, initializer="glorot_uniform", name="kernel"
        )
        self.kernel_attention = self.add_weight(
            shape=(self.units * 2, 1), trainable=True, initializer="glorot_uniform", name="kernel_attention"
        )
        self.built = True

    def call(self, inputs: Any) -> Any:
        node_states, edges = inputs
        node_states_transformed = tf.matmul(node_states, self.kernel)
        node_states_expanded = tf.gather(node_states_transformed, edges)
        node_states_expanded = tf.reshape(node_states_expanded, (tf.shape(edges)[0], -1))
        attention_scores = tf.nn.leaky_relu(tf.matmul(node_states_expanded, self.kernel_attention))
        attention_scores = tf.squeeze(attention_scores, -1)
        attention_scores = tf.math.exp(tf.clip_by_value(attention_scores, -2, 2))
        attention_scores_sum = tf.math.unsorted_segment_sum(
            data=attention_scores, segment_ids=edges[:, 0], num_segments=NUM_NODES
        )
        attention_scores_sum = tf.repeat(
            attention_scores_sum, tf.math.bincount(tf.cast(edges[:, 0], "int32"), minlength=NUM_NODES)
        )
        attention_scores_norm = attention_scores / attention_scores_sum
        node_states_neighbors = tf.gather(node_states_transformed, edges[:, 1])
        return tf.math.unsorted_segment_sum(
            data=node_states_neighbors * attention_scores_norm[:, tf.newaxis],
            segment_ids=edges[:, 0],
            num_segments=NUM_NODES,
        )


class GraphAttentionNetwork(keras.Model):
    def __init__(self, node_states: Any, edges: Any, hidden_units: int, output_dim: int) -> None:
        super().__init__()
        self.node_states = node_states
        self.edges = edges
        self.preprocess = layers.Dense(hidden_units, activation="relu")
        self.attention = GraphAttention(hidden_units)
        self.output_layer = layers.Dense(output_dim)

    def call(self, inputs: Any) -> Any:
        node_states, edges = inputs
        x = self.preprocess(node_states)
        x = self.attention([x, edges]) + x
        return self.output_layer(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        indices, labels = data
        with tf.GradientTape() as tape:
            outputs = self([self.node_states, self.edges])
            loss = self.compute_loss(y=labels, y_pred=tf.gather(outputs, indices))
        grads = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(grads, self.trainable_weights, strict=True))
        for metric in self.metrics:
            if metric.name != "loss":
                metric.update_state(labels, tf.gather(outputs, indices))
        return {metric.name: metric.result() for metric in self.metrics}


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    keras.utils.set_random_seed(12)
    rng = np.random.default_rng(12)
    node_states = rng.normal(size=(NUM_NODES, 5)).astype("float32")
    edges = rng.integers(NUM_NODES, size=(120, 2))
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    indices = rng.permutation(NUM_NODES)[:45]
    labels = node_states[indices, :NUM_CLASSES].argmax(axis=1)
    with ctx.strategy.scope():
        model = GraphAttentionNetwork(
            tf.convert_to_tensor(node_states), tf.convert_to_tensor(edges), 6, NUM_CLASSES
        )
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.SGD(0.1, momentum=0.9),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
        )
    data = tf.data.Dataset.from_tensor_slices((indices, labels)).shuffle(45, seed=12).batch(16)
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
