"""Variables under virtual replicas, in one worker: run in a TensorFlow task."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from raydist.storage.checkpoint_marker import ARRAYS_NAME
from raydist.training.checkpointing import npz, variables
from raydist.training.checks import layer_notes

keras = tf.keras


def _copies(variable: Any) -> list[list[float]]:
    variable = getattr(variable, "value", variable) if not hasattr(variable, "values") else variable
    return [np.ravel(copy.numpy()).tolist() for copy in variable.values]


def optimizers(ctx: Any) -> dict[str, Any]:
    """Trains weights by optimizers that make their variables in several ways; returns those by name."""
    import keras
    import tf_keras

    class Own(keras.optimizers.Optimizer):
        def build(self, variables: Any) -> None:
            super().build(variables)
            zeros = [np.zeros(one.shape, "float32") for one in variables]
            self.slots = [keras.Variable(one, trainable=False) for one in zeros]

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            slot = self.slots[self._get_variable_index(variable)]
            slot.assign(0.9 * slot + gradient)
            variable.assign(variable - learning_rate * slot)

    makers = {
        "keras": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "own": lambda: Own(0.1),
        "tf_keras": lambda: tf_keras.optimizers.SGD(0.1, momentum=0.9),
        "legacy": lambda: tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    }
    found: dict[str, Any] = {}
    for name, make in makers.items():
        with ctx.strategy.scope():
            weight = tf.Variable([1.0])
            optimizer = make()

        @tf.function
        def step(weight: Any = weight, optimizer: Any = optimizer) -> None:
            def replica() -> None:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.square(weight)) / 4
                optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

            ctx.strategy.run(replica)

        for _ in range(3):
            step()
        variables = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
        found[f"{name}/weight"] = np.array(_copies(weight))
        for number, one in enumerate([*variables, *getattr(optimizer, "slots", ())]):
            found[f"{name}/{number}"] = np.array(_copies(one))
    return found


def assigned(ctx: Any) -> dict[str, Any]:
    """Returns a weight that each replica has moved once, and a queue that each has moved by itself.

    And what a checkpoint has of the queue for all replicas together.
    """

    with ctx.strategy.scope():
        target, queue = tf.Variable([8.0]), tf.Variable([0.0], trainable=False)

    @tf.function
    def step() -> None:
        def replica() -> None:
            target.assign(0.5 * target)
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            queue.assign_add([tf.cast(number, tf.float32)])

        ctx.strategy.run(replica)

    step()
    step()
    copies = np.stack([copy.numpy() for copy in queue.values])
    snapshot = variables.Snapshots().take({"queue": [queue]}, is_chief=True, copies=lambda _: [copies])
    whole = npz.NpzArrays(bytes(snapshot.files()[ARRAYS_NAME]))["queue/00000"]
    return {"target": np.array(_copies(target)), "queue": copies, "whole": whole}


def late_seeds(ctx: Any) -> dict[str, Any]:
    """Returns the seeds of a layer that makes its dropout when it is built, and those after restores."""
    import keras

    class Late(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            self.dropout = keras.layers.Dropout(0.5, seed=3)

        def call(self, x: Any) -> Any:
            return self.dropout(x, training=True)

    with ctx.strategy.scope():
        layer = Late()
        layer(np.ones((4, 4), "float32"))
        state = layer.dropout.seed_generator.state.value
    begun = np.array(_copies(state))
    groups = {"layer": [state]}
    sums = [np.stack([copy.numpy() for copy in state.values])]
    snapshot = variables.Snapshots().take(groups, is_chief=True, copies=lambda _: sums)
    files = dict(snapshot.files())
    notes = {"same": variables.other_replicas(groups, files)}
    sums[0] = sums[0][:2]
    fewer = variables.Snapshots().take(groups, is_chief=True, copies=lambda _: sums)
    notes["fewer"] = variables.other_replicas(groups, fewer.files())
    for copy in state.values:
        copy.assign([0, 0])
    variables.write(groups, fewer.files(), checkpoint="fewer")
    return {"begun": begun, "restored": np.array(_copies(state)), "notes": notes}


def distributed(ctx: Any) -> dict[str, Any]:
    """Returns the rows that each replica of this task gets of a batch of 10."""
    data = tf.data.Dataset.range(10).batch(10)
    [batch] = list(ctx.strategy.experimental_distribute_dataset(data))
    rows = ctx.strategy.experimental_local_results(batch)
    replicas = ctx.strategy.own_replicas
    return {str(replica): own.numpy() for replica, own in zip(replicas, rows, strict=True)}


def noted(ctx: Any) -> dict[str, Any]:
    """Returns what is noted of steps whose results depend on the number of workers, by what they do."""

    outside = tf.Variable(0.0, name="outside")
    with ctx.strategy.scope():
        inside, generator = tf.Variable(0.0), tf.random.Generator.from_seed(3)
    compiled = tf.function(lambda: inside * 2.0, jit_compile=True)
    steps = {
        "compiled": compiled,
        "uniform": lambda: tf.random.uniform([2]),
        "outside": lambda: outside.assign_add(1.0),
        "inside": lambda: inside.assign(inside * 0.5),
        "generator": lambda: generator.normal([2]),
    }
    found = {}
    for name, step in steps.items():
        function = tf.function(lambda step=step: ctx.strategy.run(step))
        graph = function.get_concrete_function().graph
        found[name] = list(layer_notes.notes_on_workers(ctx.strategy, graph))
    tf.config.optimizer.set_jit("autoclustering")
    found["clustered"] = list(layer_notes.notes_on_workers(ctx.strategy, graph))
    tf.config.optimizer.set_jit(False)
    return found
