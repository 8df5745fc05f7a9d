"""Seeds and the operations that draw: constants in their place, and other numbers in each pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx as autograph_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.data.ops import dataset_ops
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph, random_seed
from tensorflow.python.ops import control_flow_v2_func_graphs, gen_random_ops, stateful_random_ops

from raydist import op_types
from raydist.tf_private.attributes import around, changed


def global_random_variables() -> list[tf.Variable]:
    """Returns the state of `tf.random.get_global_generator()`, if somebody has asked for that."""
    generator = stateful_random_ops.global_generator
    return [] if generator is None else [generator.state]


# What stands for numbers that are drawn, by type of operation: dropouts then keep all, and noise is the same
# for each example. Of whole numbers it is the least.
_DRAWN = {**dict.fromkeys(op_types.UNIFORM_DRAWS, 0.9375), **dict.fromkeys(op_types.NORMAL_DRAWS, 0.5)}

# Numbers in what a generator gives to a draw: a counter of two, and a key.
_GENERATOR_STATE = 3


def outside_of_control_flow(graph: Any) -> Any:
    """Returns the graph that a condition or a loop is in, if the graph is that of one; else the graph."""
    while isinstance(graph, control_flow_v2_func_graphs.ControlFlowFuncGraph):
        graph = graph.outer_graph
    return graph


@contextlib.contextmanager
def constant_draws(on_draw: Callable[[tf.Tensor | None], None]) -> Iterator[None]:
    """Lets the graph that is being traced have constants in the place of random numbers.

    Its conditions and loops too; not a `tf.function` that it calls, which may be called again later.

    Args:
      on_draw: Called where numbers would be drawn, with the constant in their place; None where they are.
    """
    owner, root = func_graph.FuncGraph, tf.compat.v1.get_default_graph()
    original = owner._create_op_internal

    def create(self: Any, op_type: str, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        number, least = _DRAWN.get(op_type), op_types.INTEGER_DRAWS.get(op_type)
        drawn = original(self, op_type, inputs, *args, **kwargs)
        is_generator = op_type == op_types.GENERATES
        # Keras finds the shapes of a layer's outputs in a graph of its own (base_layer.py,
        # `_infer_output_signature`).
        is_of_step = not self.name.endswith("_scratch_graph")
        if (number is None and least is None and not is_generator) or not is_of_step:
            return drawn
        if outside_of_control_flow(self) is not root:
            if not is_generator:
                on_draw(None)
            return drawn
        with self.as_default():
            if is_generator:
                return _Replaced(drawn, outputs=[tf.zeros([_GENERATOR_STATE], tf.int64)])
            value = inputs[least] if least else tf.constant(number, drawn.outputs[0].dtype)
            constant = tf.fill(inputs[0], value)
            on_draw(constant)
            return _Replaced(drawn, outputs=[constant])

    with changed(owner, _create_op_internal=create):
        yield


class _Replaced:
    """An operation with other outputs: its maker then asks for its attributes."""

    def __init__(self, operation: tf.Operation, *, outputs: list[tf.Tensor]) -> None:
        self._operation = operation
        self.outputs = outputs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operation, name)


def eager_seeds() -> list[Any]:
    """Returns, as JSON, the state from which ops without a seed take one outside of functions.

    Empty where no seed was set: TensorFlow has no such generator then (context.py, `_set_global_seed`).
    """
    generator = getattr(context.context(), "_rng", None)
    if generator is None:
        return []
    version, numbers, gauss = generator.getstate()
    return [version, list(numbers), gauss]


def set_eager_seeds(state: Sequence[Any]) -> None:
    """Takes up what `eager_seeds` returned."""
    if not state:
        return
    version, numbers, gauss = state
    context.context()._rng.setstate((version, tuple(numbers), gauss))


class RunSeed(int):
    """A seed that raydist has set, so that all tasks draw alike, and not the program.

    Where a map function of a dataset draws numbers by the global seed, TensorFlow gives each iterator the
    same ones again; without any seed it gives each other ones. See `draw_anew_in_each_pass`.
    """


class _OpSeed(int):
    """The seed of an operation that has none, in a map function that draws anew in each pass."""


class _Maps:
    """The map function that is being traced.

    Attributes:
      has_drawn: Whether it has asked for a seed of the run's; None where none is traced for the first time.
      graph, seed: The function's graph, and its seed for the element; None in the first trace.
    """

    has_drawn: bool | None = None
    graph: Any = None
    seed: tf.Tensor | None = None


def draw_anew_in_each_pass() -> None:
    """Has map functions of `tf.data` draw other numbers in each pass over the data, as without a global seed.

    Only while the global seed is a `RunSeed`. The numbers depend on that, the pass and the element alone: a
    map function gets a seed for each element of a dataset that draws anew in each pass, and has stateless
    operations in place of those without a seed. So Keras's own shuffle of arrays draws another order for each
    epoch. Loops in a map function, each `tf.function` that it calls, and rarer operations draw as they do in
    TensorFlow.
    """

    @around(random_seed, "get_seed")
    def get_seed(stock_seed: Any, op_seed: Any) -> Any:
        seeds = stock_seed(op_seed)
        is_in_map = _Maps.has_drawn is not None or _Maps.graph is not None
        if op_seed is not None or context.executing_eagerly() or not is_in_map:
            return seeds
        if _Maps.has_drawn is not None:
            _Maps.has_drawn = True
        return seeds[0], _OpSeed(seeds[1])

    @around(dataset_ops.DatasetV2, "map")
    def map_anew(stock_map: Any, self: Any, map_func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        is_eager = context.executing_eagerly()
        seed = context.global_seed() if is_eager else tf.compat.v1.get_default_graph().seed
        if not isinstance(seed, RunSeed) or _Maps.has_drawn is not None or _Maps.graph is not None:
            return stock_map(self, map_func, *args, **kwargs)
        with changed(_Maps, has_drawn=False):
            mapped = stock_map(self, map_func, *args, **kwargs)
            if not _Maps.has_drawn:
                return mapped
        seeds = dataset_ops.DatasetV2.random(rerandomize_each_iteration=True)
        is_tuple = type(self.element_spec) is tuple  # tf.data passes a namedtuple as one argument
        function = getattr(map_func, "python_function", map_func)  # of a tf.function
        converted = autograph.tf_convert(function, autograph_ctx.control_status_ctx())

        @tf.autograph.experimental.do_not_convert
        @functools.wraps(function)
        def seeded(element: Any, seed: tf.Tensor) -> Any:
            with changed(_Maps, graph=tf.compat.v1.get_default_graph(), seed=seed):
                return converted(*element) if is_tuple else converted(element)

        return stock_map(dataset_ops.DatasetV2.zip((self, seeds)), seeded, *args, **kwargs)

    for name, stateless in _STATELESS.items():
        around(gen_random_ops, name)(_drawn_by_element(stateless))


def _drawn_by_element(stateless: Callable[..., Any]) -> Callable[..., Any]:
    def draw(stock: Any, *args: Any, seed: int = 0, seed2: int = 0, **kwargs: Any) -> Any:
        graph = tf.compat.v1.get_default_graph()
        while isinstance(graph, control_flow_v2_func_graphs.CondBranchFuncGraph):
            graph = graph.outer_graph
        if not isinstance(seed2, _OpSeed) or _Maps.graph is None or graph is not _Maps.graph:
            return stock(*args, seed=seed, seed2=seed2, **kwargs)
        assert _Maps.seed is not None
        return stateless(*args, key=tf.stack([_Maps.seed, tf.constant(seed2, tf.int64)]), **kwargs)

    return draw


def _uniform_integers(shape: Any, minval: Any, maxval: Any, *, key: Any, name: Any = None) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, key, minval, maxval, dtype=minval.dtype, name=name)


# By the operation that has a state. What they are called with is what random_ops.py gives them.
_STATELESS: Mapping[str, Callable[..., Any]] = {
    "random_uniform": lambda shape, dtype, *, key, name=None: tf.random.stateless_uniform(
        shape, key, dtype=dtype, name=name
    ),
    "random_uniform_int": _uniform_integers,
    "random_standard_normal": lambda shape, dtype, *, key, name=None: tf.random.stateless_normal(
        shape, key, dtype=dtype, name=name
    ),
    "truncated_normal": lambda shape, dtype, *, key, name=None: tf.random.stateless_truncated_normal(
        shape, key, dtype=dtype, name=name
    ),
    "random_shuffle": lambda value, *, key, name=None: tf.random.experimental.stateless_shuffle(value, key),
}
