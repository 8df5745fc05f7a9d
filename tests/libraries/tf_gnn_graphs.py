"""TF-GNN: graphs of other sizes in one batch, as its notebook on the classes of graphs makes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_gnn as tfgnn

from tests.programs.outcome import Outcome, outcome


def graph(rng: np.random.Generator) -> tuple[Any, int]:
    nodes, edges = rng.integers(3, 8), rng.integers(4, 12)
    features = rng.normal(size=(nodes, 4)).astype("float32")
    ends = [("atoms", tf.constant(rng.integers(0, nodes, edges), tf.int32)) for _ in range(2)]
    atoms = tfgnn.NodeSet.from_fields(
        sizes=tf.constant([nodes], tf.int32), features={tfgnn.HIDDEN_STATE: tf.constant(features)}
    )
    bonds = tfgnn.EdgeSet.from_fields(
        sizes=tf.constant([edges], tf.int32), adjacency=tfgnn.Adjacency.from_indices(*ends)
    )
    pieces = {"node_sets": {"atoms": atoms}, "edge_sets": {"bonds": bonds}}
    return tfgnn.GraphTensor.from_pieces(**pieces), int(features[:, 0].mean() > 0)


def spec() -> Any:
    sizes = {"sizes_spec": tf.TensorSpec((1,), tf.int32)}
    atoms = tfgnn.NodeSetSpec.from_field_specs(
        features_spec={tfgnn.HIDDEN_STATE: tf.TensorSpec((None, 4))}, **sizes
    )
    bonds = tfgnn.EdgeSetSpec.from_field_specs(
        adjacency_spec=tfgnn.AdjacencySpec.from_incident_node_sets(
            "atoms", "atoms", tf.TensorSpec((None,), tf.int32)
        ),
        **sizes,
    )
    return tfgnn.GraphTensorSpec.from_piece_specs(
        node_sets_spec={"atoms": atoms}, edge_sets_spec={"bonds": bonds}
    )


def train(ctx: Any, *, callbacks: Any = ()) -> Outcome:
    tf.keras.utils.set_random_seed(22)
    rng = np.random.default_rng(22)
    graphs = [graph(rng) for _ in range(44)]
    data = tf.data.Dataset.from_generator(
        lambda: iter(graphs), output_signature=(spec(), tf.TensorSpec((), tf.int32))
    )
    data = data.apply(tf.data.experimental.assert_cardinality(len(graphs))).batch(16)
    with ctx.strategy.scope():
        given = tf.keras.Input(type_spec=data.element_spec[0])
        update = tfgnn.keras.layers.GraphUpdate(
            node_sets={
                "atoms": tfgnn.keras.layers.NodeSetUpdate(
                    {
                        "bonds": tfgnn.keras.layers.SimpleConv(
                            tf.keras.layers.Dense(8, "relu"), "sum", receiver_tag=tfgnn.TARGET
                        )
                    },
                    tfgnn.keras.layers.NextStateFromConcat(tf.keras.layers.Dense(8)),
                )
            }
        )
        pooled = tfgnn.keras.layers.Pool(tfgnn.CONTEXT, "mean", node_set_name="atoms")(
            update(given.merge_batch_to_components())
        )
        model = tf.keras.Model(given, tf.keras.layers.Dense(1)(pooled))
        model.compile(tf.keras.optimizers.SGD(0.1), tf.keras.losses.BinaryCrossentropy(from_logits=True))
    history = ctx.fit(model, data, epochs=3, callbacks=callbacks)
    return outcome(history, models=[model])
