"""`tf.function`: when a trace is kept or made again, and what is checked and timed in it."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import (
    autograph_util,
    function_context,
    function_type_utils,
    polymorphic_function,
)
from tensorflow.python.framework import config, ops, tensor as tensor_lib
from tensorflow.python.ops import control_flow_util, gen_array_ops
from tensorflow.python.util import tf_decorator

from raydist.tf_private.attributes import around


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function as AutoGraph converts it where it is on: users write `if tensor:` in their own."""
    return tf.__internal__.autograph.tf_convert(function, tf.__internal__.autograph.control_status_ctx())


class inlined_functions:
    """Has each `tf.function` that is called inside run as a part of its caller, without a trace of its own.

    A class, so that AutoGraph need not convert a generator. It holds for all threads: MirroredStrategy traces
    replicas in threads, one at a time.
    """

    _num_all = 0
    _num_in_traces = 0

    def __init__(self, *, only_in_traces: bool = False) -> None:
        """Takes what holds inside.

        Args:
          only_in_traces: Whether functions stay as they are in eager steps, and those that XLA compiles.
        """
        self._only_in_traces = only_in_traces

    def __enter__(self) -> None:
        self._add(1)

    def __exit__(self, *exc_info: object) -> None:
        self._add(-1)

    def _add(self, number: int) -> None:
        if self._only_in_traces:
            inlined_functions._num_in_traces += number
        else:
            inlined_functions._num_all += number

    @classmethod
    def holds_for(cls, function: Any) -> bool:
        """Whether a `tf.function` that is called now is to be inlined."""
        if function._attributes or _is_of_library(function._python_function):
            return False
        if cls._num_all > 0 or tf.executing_eagerly():
            return cls._num_all > 0
        return _is_one_of_several() or (cls._num_in_traces > 0 and not function._jit_compile)


def inline_functions(*, on_compiled: Callable[[str], None]) -> None:
    """Lets this process inline functions inside of `inlined_functions`, and in traces of several replicas.

    A `tf.function` keeps its traces, and uses one again wherever the arguments have the same types
    (function_context.py, `make_function_context`). What else a trace depends on is not in its key: whether
    optimizers are only watched, a replica's share of the batch, the values that stand for variables, how many
    replicas there are. A collective, or `merge_call`, does not work in a nested function either
    (mirrored_run.py). Functions of TensorFlow and raydist, and those with attributes, which TensorFlow may
    replace by a kernel, stay as they are.

    Args:
      on_compiled: Called with the name of a function that XLA would have compiled, and that several replicas
        call.
    """

    @around(polymorphic_function.Function, "__call__")
    def call(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not inlined_functions.holds_for(self):
            return original(self, *args, **kwargs)
        if self._jit_compile and _is_one_of_several():
            on_compiled(self.name)
        return _inlined(self, args, kwargs)


def check_constant_rows() -> None:
    """Has a replica fail where the constant shape of a reshape or `set_shape` has not the rows of its tensor.

    Grappler drops a reshape that may be without effect: it takes a batch of unknown size for one of the
    size that is asked for (arithmetic_optimizer.cc and constant_folding.cc). `set_shape` checks nothing.
    With a part of the batch the model would go on without a word. EnsureShape is never dropped.
    """

    @around(gen_array_ops, "reshape")
    def reshape(original: Any, tensor: Any, shape: Any, name: str | None = None) -> tf.Tensor:
        made = original(tensor, shape, name)
        is_traced = isinstance(made, tf.Tensor) and not context.executing_eagerly()
        if not is_traced or not made.shape.is_fully_defined() or not _is_one_of_several():
            return made
        given = made.op.inputs[0]
        if given.shape.is_fully_defined():
            return made
        may_be_same = given.shape.rank is not None and given.shape.is_compatible_with(made.shape)
        # Behind a reshape of another rank stands none that Grappler can join with it.
        return tf.ensure_shape(given if may_be_same else made, made.shape)

    @around(tensor_lib.Tensor, "set_shape")
    def set_shape(original: Any, self: tf.Tensor, shape: Any) -> None:
        wanted = tf.TensorShape(shape)
        fixes_rows = bool(self.shape.rank and wanted.rank) and self.shape[0] is None and wanted[0] is not None
        is_traced_here = fixes_rows and self.graph is ops.get_default_graph() and _is_one_of_several()
        rows = tf.shape(self)[0] if is_traced_here else None
        original(self, shape)
        if rows is not None:
            tf.debugging.assert_equal(rows, wanted[0], "set_shape")


def key_traces_by_replica() -> None:
    """Has a `tf.function` that is called in eager steps keep a trace for each replica, and another outside.

    TensorFlow has the replica's device in the key of a trace, but only if the process has several
    (function_context.py). Losses are scaled by the number of replicas, and a replica may ask for its number.
    """

    @around(function_context, "make_function_context")
    def make_function_context(original: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if not tf.executing_eagerly() or not _is_one_of_several():
            return made
        replica = tf.distribute.get_replica_context()
        number = tf.get_static_value(replica.replica_id_in_sync_group)
        # Any field that is compared; this one is otherwise for functions that are being saved.
        policy = made.context.variable_policy, replica.num_replicas_in_sync, int(number)
        return made._replace(context=made.context._replace(variable_policy=policy))


def _is_one_of_several() -> bool:
    """Whether this is called by a replica of several."""
    is_replica = tf.distribute.get_replica_context() is not None
    return is_replica and bool(tf.distribute.get_strategy().num_replicas_in_sync > 1)


def _is_of_library(function: Any) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    _, target = tf_decorator.unwrap(function)
    return str(getattr(target, "__module__", "")).partition(".")[0] in ("tensorflow", "raydist")


_converted: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def _inlined(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the Python function of a `tf.function`, with arguments and results as a trace has them."""
    python_function = function._python_function
    if function._autograph and not tf.executing_eagerly():
        if function not in _converted:
            options = function._experimental_autograph_options
            _converted[function] = autograph_util.py_func_from_autograph(python_function, options)
        python_function = _converted[function]
    args, kwargs = _with_signature(function, args, kwargs)
    args, kwargs = tf.nest.map_structure(
        lambda one: tf.convert_to_tensor(one) if isinstance(one, (np.ndarray, np.generic)) else one,
        (args, kwargs),
    )
    return tf.nest.map_structure(_as_returned, python_function(*args, **kwargs))


def _with_signature(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with the types of a function's `input_signature`, if it has one.

    Sizes may be others: a replica has a part of the batch.
    """
    signature = function.input_signature
    if signature is None:
        return args, kwargs
    own_type, defaults = function_type_utils.make_function_type(function._python_function, None)
    bound = function_type_utils.bind_function_inputs(args, kwargs, own_type, defaults)

    def cast(spec: Any, value: Any) -> Any:
        return tf.convert_to_tensor(value, spec.dtype) if isinstance(spec, tf.TensorSpec) else value

    own = [
        tf.nest.map_structure(cast, spec, value, check_types=False)
        for spec, value in zip(signature, bound.args, strict=False)
    ]
    return (*own, *bound.args[len(own) :]), bound.kwargs


def _as_returned(value: Any) -> Any:
    """Returns a result as a trace has it (func_graph.py, `func_graph_from_py_func`)."""
    is_kept = value is None or isinstance(value, (tf.TensorArray, tf.__internal__.CompositeTensor))
    return value if is_kept and not isinstance(value, tf.Variable) else tf.convert_to_tensor(value)


def is_in_xla() -> bool:
    """Whether what is traced now is compiled by XLA."""
    return bool(control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()))


def without_retracing_warnings(function: Any) -> Any:
    """Returns a `tf.function` of raydist's, of which TensorFlow does not count how often it is traced.

    It counts by the code (polymorphic_function.py, `_get_key_for_call_stats`), and takes the functions of
    several loops for one that is traced again and again.
    """
    function._omit_frequent_tracing_warning = True
    return function


def is_op_determinism_enabled() -> bool:
    """Whether deterministic operations were asked for, in the program or by TF_DETERMINISTIC_OPS."""
    return bool(config.is_op_determinism_enabled())


class Timestamps:
    """`tf.timestamp` in graphs that outlive a call of `tf.config.experimental.enable_op_determinism`.

    The operation has no deterministic implementation, and its kernel raises from then on.
    """

    _are_allowed: ClassVar[tf.Variable | None] = None

    @classmethod
    def begin(cls) -> None:
        """Begins to notice that call. Outside of every strategy."""
        if cls._are_allowed is not None:
            return
        with tf.init_scope(), tf.device("CPU:0"):
            cls._are_allowed = allowed = tf.Variable(True, trainable=False, name="raydist_timestamps")
        original = config._pywrap_determinism

        def enable(is_enabled: bool) -> None:
            original.enable(is_enabled)
            allowed.assign(not is_enabled)

        config._pywrap_determinism = types.SimpleNamespace(enable=enable, is_enabled=original.is_enabled)

    @classmethod
    def now(cls) -> tf.Tensor:
        """Returns the time in a graph, in seconds; 0.0 where operations have to be deterministic."""
        assert cls._are_allowed is not None
        return tf.cond(cls._are_allowed.read_value(), tf.timestamp, lambda: tf.constant(0.0, tf.float64))
