"""How collectives are launched: of which sizes and types, between whom, and who is told of them."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.ops import collective_ops, control_flow_v2_func_graphs

from raydist.errors import UnsupportedError
from raydist.tf_private.attributes import around, own_attributes
from raydist.tf_private.graphs import operations_in

# Of what is gathered in a loop: powers of two, up to 2 ** 30 elements.
_NUM_SIZES = 31


def gather_sizes_in_loops() -> None:
    """Lets what is gathered in a loop, as sparse gradients are, have another size in each iteration.

    A collective has one instance key for all iterations, and TensorFlow keeps the shape that the first one
    had (collective_param_resolver_local.cc, `Shape mismatch in the collective instance`). Here tensors are
    padded to one of a few sizes, each of which has a key of its own.
    """

    @around(cross_device_utils.CollectiveReplicaLauncher, "_all_gather")
    def gather(original: Any, self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        tensor = tf.convert_to_tensor(input_tensor)
        if tensor.shape.is_fully_defined() or not _is_in_loop():
            return original(self, tensor, *args, **kwargs)
        with tf.device(self._device):
            flat, shape = tf.reshape(tensor, [-1]), tf.shape(tensor)
            sizes = tf.constant([2**exponent for exponent in range(_NUM_SIZES)])
            index = tf.searchsorted(sizes, [tf.size(flat)])[0]
            padded = tf.pad(flat, [[0, sizes[index] - tf.size(flat)]])
            with tf.device("CPU:0"):
                key = _instance_keys(self)[index]
            with own_attributes([(self, "_next_instance_key", lambda: key)]):
                gathered = original(self, padded, *args, **kwargs)
            parts = tf.reshape(gathered, [self._group_size, sizes[index]])[:, : tf.size(flat)]
            result = tf.reshape(parts, tf.concat([[self._group_size * shape[0]], shape[1:]], axis=0))
            result.set_shape([None, *tensor.shape[1:]])
            return result


def _is_in_loop() -> bool:
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        if isinstance(graph, control_flow_v2_func_graphs.WhileBodyFuncGraph):
            return True
        graph = graph.outer_graph
    return False


def _instance_keys(launcher: Any) -> tf.Tensor:
    """Returns a key for each size, others in each call, as the launcher's `_next_instance_key` does."""
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    if not tf.executing_eagerly() and graph.building_function:
        spec = tf.TensorSpec([_NUM_SIZES], tf.int32)
        with graph.as_default():
            return graph.capture_call_time_value(functools.partial(_instance_keys, launcher), spec)
    next_key = functools.partial(
        launcher._collective_keys.get_instance_key, launcher._group_key, launcher._device
    )
    with tf.device("CPU:0"):
        return tf.constant([next_key() for _ in range(_NUM_SIZES)], tf.int32)


def launcher_of(extended: Any) -> Any:
    """Returns what launches the collectives between the hosts of a strategy's workers."""
    return extended._host_cross_device_ops._launchers[0]


def num_workers_of(strategy: tf.distribute.Strategy) -> int:
    """Returns of how many workers each has a part of a synchronous strategy's replicas."""
    return int(strategy.extended._num_workers)


def host_of(strategy: tf.distribute.Strategy) -> str:
    """Returns the name of this worker's CPU in such a strategy."""
    return f"{strategy.extended._worker_device}/device:CPU:0"


def all_gather(launcher: Any, tensor: tf.Tensor, options: Any) -> tf.Tensor:
    """Returns the workers' tensors of one shape, joined in the order of the workers along axis 0."""
    return launcher._all_gather(tensor, options)


def all_to_all(launcher: Any, tensor: tf.Tensor, options: Any) -> tf.Tensor:
    """Returns each worker's chunk for this one, in the order of the workers.

    Args:
      tensor: `[workers, ...]`: the chunk for each.
    """
    chosen = launcher._options.merge(options)
    key, token = launcher._next_instance_key(), launcher._get_ordering_token()
    with tf.device(launcher._device):
        return tf.raw_ops.CollectiveAllToAllV2(
            input=tensor,
            group_size=launcher._group_size,
            group_key=launcher._group_key,
            instance_key=key,
            ordering_token=[] if token is None else [token],
            communication_hint=chosen.implementation.value,
            timeout_seconds=chosen.timeout_seconds or 0,
        )


# All of the launcher's methods end in these two, for dense and for gathered tensors.
_LAUNCHING = ("all_reduce", "_all_gather")


def observe_collectives(begin: Callable[[Any, str], Any], end: Callable[[Any, tf.Tensor, str], None]) -> None:
    """Observes each collective of this process, when it is traced or runs eagerly.

    Args:
      begin: Called with the collective's input and device, before it.
      end: Called with what `begin` returned, the collective's result and device.
    """

    @around(cross_device_utils.CollectiveReplicaLauncher, *_LAUNCHING)
    def launch(original: Any, self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        begun = begin(input_tensor, self._device)
        result = original(self, input_tensor, *args, **kwargs)
        end(begun, result, self._device)
        return result


class CollectiveCalls:
    """Tells of each call from Python that runs collectives of a strategy, before and after it.

    TensorFlow has no such hook: a function that was traced once runs without any Python of a strategy. So
    each trace that is called is looked through once for collectives, with the functions that it calls.
    """

    _tell: Callable[[bool], None] = staticmethod(lambda begins: None)
    _keys: Any = None  # of the strategy's collectives
    _device = ""  # of this task's first replica, which tells for all of them

    @classmethod
    def begin(cls, strategy: tf.distribute.Strategy, tell: Callable[[bool], None]) -> None:
        """Tells of those of `strategy` from now on: with True as a call begins, with False as it ends."""
        extended = strategy.extended
        cls._keys, cls._device, cls._tell = extended._collective_keys, extended.worker_devices[0], tell
        around(concrete_function.ConcreteFunction, "_call_flat")(cls._call)
        around(cross_device_utils.CollectiveReplicaLauncher, *_LAUNCHING)(cls._launch)
        around(collective_ops, "broadcast_send", "broadcast_recv")(cls._exchange)

    @classmethod
    def end(cls) -> None:
        """Tells nobody any more."""
        cls._keys, cls._tell = None, staticmethod(lambda begins: None)

    @classmethod
    def _call(cls, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        is_own = cls._keys is not None and threading.get_ident() == threading.main_thread().ident
        with cls.told() if is_own and _has_collectives(function) else contextlib.nullcontext():
            return original(function, *args, **kwargs)

    @classmethod
    def _launch(cls, original: Any, launcher: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        is_told = launcher._collective_keys is cls._keys and launcher._device == cls._device
        with cls.told() if is_told else contextlib.nullcontext():
            return original(launcher, *args, **kwargs)

    @classmethod
    def _exchange(cls, original: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        with cls.told():
            return original(*args, **kwargs)

    @classmethod
    @contextlib.contextmanager
    def told(cls) -> Iterator[None]:
        """Tells of a collective that runs in the block; not of one that is traced there."""
        if not tf.executing_eagerly():
            yield
            return
        cls._tell(True)
        try:
            yield
        finally:
            cls._tell(False)


def _has_collectives(function: Any) -> bool:
    """Whether a trace, or one that it calls, has collectives."""
    known = vars(function).get("_raydist_has_collectives")
    if known is None:
        known = any(op.type.startswith("Collective") for op in operations_in(function.graph))
        vars(function)["_raydist_has_collectives"] = known
    return bool(known)


# What all of TensorFlow's collectives take (ops/collective_ops.cc).
_SENT = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
# Of other types: those that hold all their values, or their bits.
_WIDER = {
    **dict.fromkeys(
        map(tf.as_dtype, ("bool", "int4", "uint4", "int8", "uint8", "int16", "uint16")), tf.int32
    ),
    **dict.fromkeys(map(tf.as_dtype, ("bfloat16", "float8_e5m2", "float8_e4m3fn")), tf.float32),
    tf.uint32: tf.int64,
}
_SAME_BITS = {
    **{tf.uint64: tf.int64, tf.complex64: tf.float32, tf.complex128: tf.float64},
    **{tf.qint8: tf.int8, tf.quint8: tf.uint8, tf.qint16: tf.int16, tf.quint16: tf.uint16},
    tf.qint32: tf.int32,
}


# What TensorFlow reduces over workers (ops/collective_ops.cc, `CollectiveReduceV2`).
_REDUCED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def known_spec(spec: tf.TensorSpec) -> tf.TensorSpec:
    """Returns of what shape and type a tensor is sent, so that collectives take it.

    Raises:
      UnsupportedError: They take none of its type.
    """
    if (wider := _WIDER.get(spec.dtype)) is not None:
        return tf.TensorSpec(spec.shape, wider)
    if (bits := _SAME_BITS.get(spec.dtype)) is not None:
        parts = [2] if spec.dtype.is_complex else []
        return known_spec(tf.TensorSpec(spec.shape.concatenate(parts), bits))
    if spec.dtype not in _SENT:
        raise UnsupportedError(
            f"a variable of type {spec.dtype.name} cannot be the same in several workers, because TensorFlow "
            "sends none of that type; make it outside of the strategy's scope, or use a table of tf.lookup"
        )
    return spec


def as_known(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor as it is sent, see `known_spec`."""
    if (wider := _WIDER.get(tensor.dtype)) is not None:
        return tf.cast(tensor, wider)
    if (bits := _SAME_BITS.get(tensor.dtype)) is not None:
        return as_known(tf.bitcast(tensor, bits))
    return tensor


def from_known(tensor: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns what was sent in the type that it had."""
    if dtype in _WIDER:
        return tf.cast(tensor, dtype)
    if (bits := _SAME_BITS.get(dtype)) is not None:
        return tf.bitcast(from_known(tensor, bits), dtype)
    return tensor


def exchange_each_type() -> None:
    """Lets workers exchange variables of types that collectives do not take, and gradients of several types.

    TensorFlow concatenates gradients whatever their types are (`batch_all_reduce`), which fails.
    """
    launcher = cross_device_utils.CollectiveReplicaLauncher

    @around(collective_ops, "broadcast_send")
    def sent_by_chief(
        send: Any, t: tf.Tensor, shape: Any, dtype: tf.DType, *args: Any, **kwargs: Any
    ) -> tf.Tensor:
        spec = known_spec(tf.TensorSpec(shape, dtype))
        return from_known(send(as_known(t), spec.shape, spec.dtype, *args, **kwargs), dtype)

    @around(collective_ops, "broadcast_recv")
    def received(receive: Any, shape: Any, dtype: tf.DType, *args: Any, **kwargs: Any) -> tf.Tensor:
        spec = known_spec(tf.TensorSpec(shape, dtype))
        return from_known(receive(spec.shape, spec.dtype, *args, **kwargs), dtype)

    @around(launcher, "all_reduce")
    def reduced(all_reduce: Any, self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        dtype = tf.as_dtype(input_tensor.dtype)
        if dtype in _REDUCED:
            return all_reduce(self, input_tensor, *args, **kwargs)
        return from_known(all_reduce(self, as_known(input_tensor), *args, **kwargs), dtype)

    @around(launcher, "batch_all_reduce")
    def reduced_by_type(
        batch_all_reduce: Any, self: Any, input_tensor_packs: Any, options: Any = None
    ) -> list[Any]:
        tensors = [one for pack in input_tensor_packs for one in pack]
        if all(len({one.dtype for one in pack}) == 1 for pack in input_tensor_packs):
            return list(batch_all_reduce(self, input_tensor_packs, options))
        places: dict[Any, list[int]] = {}
        for place, one in enumerate(tensors):
            places.setdefault(one.dtype, []).append(place)
        packs = [[tensors[place] for place in of_type] for of_type in places.values()]
        found = zip(itertools.chain(*places.values()), batch_all_reduce(self, packs, options), strict=True)
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]
