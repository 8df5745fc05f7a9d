"""Programs whose steps read weights that they have just changed, in all the ways that steps do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import raydist.data
from tests.support.late import LateModule

tf = LateModule("tensorflow")

NAMES = (
    "dense used_twice gan clipped loop nested penalty recurrent mixed spectral forward own_gradient"
).split()
STEPS, BATCH_SIZE = 40, 8


def train(ctx: Any, *, names: Sequence[str]) -> dict[str, Any]:
    """Trains programs by `ctx.fit`; returns the weights of each, in the order of its variables."""
    from raydist.training.parameter_server import closure_sizes

    # So that closures unroll their steps whatever time those take.
    closure_sizes._SAVED = closure_sizes._SHORT_STEP_S = 1e9
    closure_sizes.UNROLL = 4  # each of the steps is traced, and the second shows what the tenth does
    found: dict[str, Any] = {}
    for name in names:
        tf.keras.utils.set_random_seed(3)
        with ctx.strategy.scope():
            model = _MAKERS[name](tf.keras)
        x, y = _data(name)

        def data(x: Any = x, y: Any = y) -> Any:
            return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE)

        # A closure is told which of these batches are its own.
        batches = raydist.data.from_arrays((x, y)).batches(global_batch_size=BATCH_SIZE, shuffle=False)
        plain = data if ctx.coordinator is not None else data().repeat()
        ctx.fit(model, batches if name == "used_twice" else plain, epochs=1, steps_per_epoch=STEPS, verbose=0)
        weights = [
            variable.numpy().reshape(-1) for variable in model.variables if "seed" not in variable.name
        ]
        found[name] = np.concatenate([one.astype("float64") for one in weights])
    return found


def messages(ctx: Any, *, unroll: int = 1) -> dict[str, Any]:
    """Returns how many tensors cross between tasks in a turn of `unroll` steps, for models of 2 and 6 layers.

    A tensor crosses once for each task that uses it, as TensorFlow cuts graphs (graph_partition.cc).
    """
    from raydist import tf_private
    from raydist.training.parameter_server import closure_sizes, closures

    closure_sizes.UNROLL, closure_sizes._SAVED = unroll, 1e9
    closure_sizes._FIRST_LOOK_S = closure_sizes._LOOK_S = (
        0.0  # the steps are over before that on a fast machine
    )
    x, y = _data("dense")
    found: dict[str, Any] = {}
    make = closures.StepReads
    for num_layers in (2, 6):
        with ctx.strategy.scope():
            model = _layers(tf.keras, *[4] * (num_layers - 1))
            model.compile(tf.keras.optimizers.Adam(0.01), loss="mse")
        graphs: list[Any] = []

        def noted(*args: Any, graphs: list[Any] = graphs, **options: Any) -> Any:
            graphs.append(tf.compat.v1.get_default_graph())
            return make(*args, **options)

        closures.StepReads = noted
        ctx.fit(
            model,
            lambda: tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH_SIZE),
            epochs=1,
            steps_per_epoch=1 if unroll == 1 else STEPS,
            verbose=0,
        )
        closures.StepReads = make
        variables = [*model.variables, *model.optimizer.variables]
        devices = {id(part.handle): part.device for one in variables for part in tf_private.parts_of(one)}
        found[str(num_layers)] = _num_crossings(graphs[-1], devices)
    return found


def _num_crossings(graph: Any, devices: dict[int, str]) -> int:
    handles = {inner.op.name: devices.get(id(outer), "") for outer, inner in _variables_of(graph)}

    def device_of(op: Any) -> str:
        served = [handles[one.op.name] for one in op.inputs if handles.get(one.op.name)]
        place = served[0] if served else op.device
        return "ps" + place.split("/job:ps")[1].split("/task:")[1][0] if "/job:ps" in place else "worker"

    crossing = {
        (tensor.name, device_of(op))
        for op in graph.get_operations()
        for tensor in op.inputs
        if tensor.op.name not in handles and device_of(tensor.op) != device_of(op)
    }
    return len(crossing)


def _variables_of(graph: Any) -> list[tuple[Any, Any]]:
    """Returns the variables' handles outside of a function and inside, through the functions around it."""
    found = []
    for outer, inner in graph.captures:
        if inner.dtype.name != "resource":
            continue
        while hasattr(outer, "graph") and hasattr(outer.graph, "captures"):
            around = next((far for far, near in outer.graph.captures if near is outer), None)
            if around is None:
                break
            outer = around
        found.append((outer, inner))
    return found


def _data(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    if name == "recurrent":
        x = rng.integers(0, 20, (BATCH_SIZE * STEPS, 5))
        return x, (x.sum(axis=1) % 7).astype("float32")[:, None]
    x = rng.normal(size=(BATCH_SIZE * STEPS, 4)).astype("float32")
    return x, np.tanh(x[:, :1] - x[:, 1:2]).astype("float32")


def _layers(keras: Any, *sizes: int) -> Any:
    dense = [keras.layers.Dense(size, activation="tanh") for size in sizes]
    return keras.Sequential([keras.layers.Input((4,)), *dense, keras.layers.Dense(1)])


def _dense(keras: Any) -> Any:
    model = keras.Sequential(
        [
            keras.layers.Input((4,)),
            keras.layers.Dense(8, activation="relu", kernel_regularizer=keras.regularizers.L2(0.01)),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1, kernel_constraint=keras.constraints.MaxNorm(1.0)),
        ]
    )
    rate = keras.optimizers.schedules.ExponentialDecay(0.02, 10, 0.9)
    model.compile(keras.optimizers.AdamW(rate, weight_decay=0.02, clipnorm=0.5), loss="mse")
    return model


def _used_twice(keras: Any) -> Any:
    shared, inputs = keras.layers.Dense(4, activation="tanh"), keras.layers.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(shared(shared(inputs))))
    model.compile(keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.9), loss="mse")
    return model


def _own_step(step: Callable[..., Any]) -> Callable[[Any], Any]:
    """Returns what makes a model of two networks that trains by `step(model, x, y) -> loss`."""

    def make(keras: Any) -> Any:
        class Own(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = _layers(keras, 6, 5), _layers(keras, 5)
                self.other = keras.optimizers.RMSprop(0.01)

            def call(self, x: Any) -> Any:
                return self.first(x) + self.second(x)

            def train_step(self, batch: Any) -> dict[str, Any]:
                return {"loss": step(self, *batch)}

        model = Own()
        model.compile(optimizer=keras.optimizers.Adam(0.01))
        model(np.zeros((1, 4), "float32"))
        return model

    return make


def _update(optimizer: Any, loss: Callable[[], Any], variables: Any) -> Any:
    with tf.GradientTape() as tape:
        value = loss()
    optimizer.apply_gradients(zip(tape.gradient(value, variables), variables, strict=True))
    return value


def _gan_step(self: Any, x: Any, y: Any) -> Any:
    def distance() -> Any:
        return tf.reduce_mean((self.first(x) - y) ** 2) - 0.1 * tf.reduce_mean(self.first(x * self.second(x)))

    def reverse() -> Any:
        return tf.reduce_mean(self.first(x * self.second(x)) ** 2)

    _update(self.other, distance, self.first.trainable_variables)
    return _update(self.optimizer, reverse, self.second.trainable_variables)


def _clipped_step(self: Any, x: Any, y: Any) -> Any:
    def loss() -> Any:
        return tf.reduce_mean((self.first(x) - y) ** 2)

    _update(self.optimizer, loss, self.first.trainable_variables)
    for variable in self.first.trainable_variables:
        variable.assign(tf.clip_by_value(variable, -0.3, 0.3))
    return _update(self.other, loss, self.first.trainable_variables)


def _loop_step(self: Any, x: Any, y: Any) -> Any:
    variables = self.first.trainable_variables

    def again(index: Any, *sums: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.first(x[index::2]) - y[index::2]) ** 2)
        gradients = tape.gradient(loss, variables)
        return (index + 1, *(total + one for total, one in zip(sums, gradients, strict=True)))

    for _ in range(2):  # an update cannot be inside the loop, but between two of them
        zeros = [tf.zeros(variable.shape) for variable in variables]
        sums = tf.while_loop(lambda index, *_: index < 2, again, [0, *zeros])[1:]
        self.optimizer.apply_gradients(zip(sums, variables, strict=True))
    return tf.norm(sums[0])


def _nested_step(self: Any, x: Any, y: Any) -> Any:
    if not hasattr(self, "traced"):
        self.traced = tf.function(lambda x, y: tf.reduce_mean((self.first(x) + self.second(x) - y) ** 2))
    _update(self.optimizer, lambda: self.traced(x, y), self.first.trainable_variables)
    return _update(self.other, lambda: self.traced(x, y), self.second.trainable_variables)


def _penalty_step(self: Any, x: Any, y: Any) -> Any:
    def loss() -> Any:
        with tf.GradientTape() as inner:
            inner.watch(x)
            output = self.first(x)
        slope = inner.gradient(output, x)
        return tf.reduce_mean((output - y) ** 2) + 0.1 * tf.reduce_mean(tf.norm(slope, axis=1) ** 2)

    return _update(self.optimizer, loss, self.first.trainable_variables)


def _spectral(keras: Any) -> Any:
    """Its kernel is assigned in each forward pass."""
    if not hasattr(keras.layers, "SpectralNormalization"):
        return _dense(keras)
    hidden = keras.layers.SpectralNormalization(keras.layers.Dense(5, activation="tanh"))
    model = keras.Sequential([keras.layers.Input((4,)), hidden, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), loss="mse")
    return model


def _forward_step(self: Any, x: Any, y: Any) -> Any:
    """Updates by derivatives in forward mode too."""
    first = self.first.trainable_variables[0]
    first = first if isinstance(first, tf.Variable) else first.value  # of Keras 3
    with tf.autodiff.ForwardAccumulator(first, tf.ones_like(first)) as forward:
        output = self.first(x)
    slope = tf.reduce_mean(forward.jvp(output))
    first.assign_sub(0.01 * tf.ones_like(first) * slope)
    return _update(
        self.optimizer, lambda: tf.reduce_mean((self.first(x) - y) ** 2), self.first.trainable_variables
    )


def _own_gradient_step(self: Any, x: Any, y: Any) -> Any:
    kernel, bias = self.second.trainable_variables[:2]

    @tf.custom_gradient
    def scaled(inputs: Any) -> Any:
        def gradient(upstream: Any, variables: Any) -> Any:
            assert len(variables) == 1
            return upstream @ tf.transpose(kernel), [tf.transpose(inputs) @ upstream]

        return inputs @ tf.convert_to_tensor(kernel), gradient

    def loss() -> Any:
        return tf.reduce_mean((scaled(x) + bias) ** 2) + tf.reduce_mean((self.first(x) - y) ** 2)

    return _update(self.optimizer, loss, [kernel, bias, *self.first.trainable_variables])


def _recurrent(keras: Any) -> Any:
    layers = [keras.layers.Embedding(20, 3), keras.layers.LSTM(4), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((5,), dtype="int64"), *layers])
    model.compile(keras.optimizers.Adagrad(0.05), loss="mse")
    return model


def _mixed(keras: Any) -> Any:
    policy = keras.mixed_precision.Policy("mixed_bfloat16")
    layers = [keras.layers.Dense(8, activation="relu", dtype=policy), keras.layers.Dense(1, dtype="float32")]
    model = keras.Sequential([keras.layers.Input((4,)), *layers])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss="mse")
    return model


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "dense": _dense,
    "used_twice": _used_twice,
    "gan": _own_step(_gan_step),
    "clipped": _own_step(_clipped_step),
    "loop": _own_step(_loop_step),
    "nested": _own_step(_nested_step),
    "penalty": _own_step(_penalty_step),
    "spectral": _spectral,
    "forward": _own_step(_forward_step),
    "own_gradient": _own_step(_own_gradient_step),
    "recurrent": _recurrent,
    "mixed": _mixed,
}
