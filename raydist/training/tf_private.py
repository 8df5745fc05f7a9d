"""All that raydist touches of TensorFlow's private parts.

Checked with TensorFlow 2.18 to 2.21; tests/training/test_tf_private.py fails when one is gone.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import enum
import functools
import inspect
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx as autograph_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.checkpoint import checkpoint
from tensorflow.python.data.experimental.ops import cardinality as cardinality_op
from tensorflow.python.data.ops import (
    batch_op,
    dataset_ops,
    interleave_op,
    iterator_ops,
    map_op,
    multi_device_iterator_ops,
    options as options_lib,
    padded_batch_op,
    prefetch_op,
    random_op,
    repeat_op,
    shuffle_op,
    skip_op,
    take_op,
)
from tensorflow.python.data.util import structure
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    cross_device_utils,
    distribute_lib,
    distribute_utils,
    input_lib,
    mirrored_run,
    mirrored_strategy,
    values as distributed_values,
)
from tensorflow.python.distribute.coordinator import values
from tensorflow.python.distribute.sharded_variable import ShardedVariable
from tensorflow.python.eager import context, forwardprop_util, record
from tensorflow.python.eager.polymorphic_function import (
    autograph_util,
    concrete_function,
    function_context,
    function_type_utils,
    polymorphic_function,
)
from tensorflow.python.framework import (
    auto_control_deps_utils,
    config,
    func_graph,
    op_def_registry,
    ops,
    random_seed,
    tensor as tensor_lib,
)
from tensorflow.python.ops import (
    collective_ops,
    control_flow_util,
    control_flow_v2_func_graphs,
    gen_array_ops,
    gen_random_ops,
    gen_resource_variable_ops,
    gen_script_ops,
    resource_variable_ops,
    script_ops,
    stateful_random_ops,
)
from tensorflow.python.util import tf_decorator

from raydist.errors import UnsupportedError
from raydist.known_versions import KNOWN
from raydist.spec.tasks import ClusterSpec, TaskId

__all__ = ["ShardedVariable"]  # has no public name

HEARTBEAT_TIMEOUT_S = 20
# More keys than one strategy uses; TensorFlow's own tests of several strategies take as many.
_KEYS_PER_TASK = 100_000
# Of what is gathered in a loop: powers of two, up to 2 ** 30 elements.
_NUM_SIZES = 31


@contextlib.contextmanager
def changed(owner: Any, **attributes: Any) -> Iterator[None]:
    """Gives an object, a class or a module other attributes inside the block; it has them already."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


_ABSENT = object()


@contextlib.contextmanager
def own_attributes(attributes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Gives instances attributes of their own inside the block, each as its owner, name and value.

    It does so past __setattr__, by which both Kerases track what layers and metrics have.
    """
    given = list(attributes)
    before = [vars(owner).get(name, _ABSENT) for owner, name, _ in given]
    for owner, name, value in given:
        vars(owner)[name] = value
    try:
        yield
    finally:
        for (owner, name, _), value in zip(given, before, strict=True):
            if value is _ABSENT:
                del vars(owner)[name]
            else:
                vars(owner)[name] = value


def check_untouched() -> None:
    """Raises UnsupportedError when an op ran before the strategy exists.

    Collectives can be configured only in a fresh context (tensorflow-notes.md#the-context-must-be-untouched).
    """
    if context.context()._context_handle is not None:
        raise UnsupportedError(
            "TensorFlow was used before raydist built the strategy; leave tensors, variables and "
            "tf.config.list_logical_devices() to the train function"
        )


def configure_coordination(cluster_spec: ClusterSpec, *, start_timeout_s: float) -> None:
    """Bounds TensorFlow's start-up barrier, which otherwise waits an hour and names no task.

    MultiWorkerMirroredStrategy configures the coordination service only where it is not yet
    (collective_all_reduce_strategy.py). With a barrier at registration a missing peer raises
    `DeadlineExceededError … Some timed out task names: …`. See
    tensorflow-notes.md#start-and-the-coordination-service.
    """
    current = context.context()
    if current.coordination_service is not None:
        return  # by an earlier strategy of this process, for the same cluster
    # As TensorFlow imports it: the module has moved between 2.18 and 2.19.
    protos = getattr(context, "coordination_config_pb2", None)
    if protos is None or not hasattr(current, "configure_coordination_service"):
        return  # see missing_parts
    jobs = [
        protos.CoordinatedJob(name=task_type.value, num_tasks=len(addresses))
        for task_type, addresses in cluster_spec.jobs
    ]
    current.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{jobs[0].name}/replica:0/task:0",
        coordinated_jobs=jobs,
        cluster_register_timeout_in_ms=int(start_timeout_s * 1000),
        heartbeat_timeout_in_ms=HEARTBEAT_TIMEOUT_S * 1000,
    )
    # A public field of the proto, for which configure_coordination_service has no argument; without
    # it the time-out does not bound the leader. TensorFlow 2.18 has no such field.
    if _has_barrier(protos):
        current._coordination_service_config.cluster_register_with_barrier = True


def _has_barrier(protos: Any) -> bool:
    return "cluster_register_with_barrier" in protos.CoordinationServiceConfig.DESCRIPTOR.fields_by_name


def newer_than_known() -> tuple[str, str] | None:
    """Returns a sentence, and what pip would install instead, if TensorFlow is newer than raydist knows."""
    known = KNOWN["tensorflow"]
    if not known.is_newer(tf.__version__):
        return None
    last = f"{known.newest}, the last version that raydist knows"
    return f"TensorFlow {tf.__version__} is newer than {last}", f"tensorflow{known.requirement}"


def missing_parts() -> list[str]:
    """Returns what raydist does without because this TensorFlow has no such part, one sentence for each."""
    current, protos = context.context(), getattr(context, "coordination_config_pb2", None)
    has_service = protos is not None and hasattr(current, "configure_coordination_service")
    parts = {
        "a barrier at registration": has_service and _has_barrier(protos),
        "report_error_to_cluster": hasattr(current, "report_error_to_cluster"),
        "mirrored_strategy.all_local_devices": hasattr(mirrored_strategy, "all_local_devices"),
        "thread-local callables of replicas": hasattr(
            mirrored_run, "_get_thread_local_configuration_callable"
        ),
    }
    missing = [name for name, is_there in parts.items() if not is_there]
    return [f"TensorFlow {tf.__version__} has no {name}: {_LOST[name]}" for name in missing]


_LOST = {
    "a barrier at registration": "a task that does not start is named at --start-timeout, by raydist alone",
    "report_error_to_cluster": "tasks whose peer raised are ended by raydist, not by TensorFlow",
    "thread-local callables of replicas": "keras.random without a seed draws other numbers in each replica",
    "mirrored_strategy.all_local_devices": "do not make a MirroredStrategy() in a task of several workers",
}


def report_error_to_peers(message: str) -> None:
    """Makes every collective of the peers fail at once with `message`.

    A peer that raised but whose process lives is otherwise waited for without end
    (tensorflow-notes.md#a-worker-that-fails).
    """
    current = context.context()
    if current.coordination_service is not None and hasattr(current, "report_error_to_cluster"):
        # Where a peer's failure came first the service is gone, and TensorFlow raises.
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            current.report_error_to_cluster(2, message[:1000])


def keep_mirrored_local(task: TaskId) -> None:
    """Lets a MirroredStrategy that a job makes in a task of several workers use this task's devices alone.

    `MirroredStrategy()` takes every device that `list_logical_devices` returns, which are those of all
    workers, and copying a tensor to another worker's device ends the process with SIGSEGV
    (mirrored_strategy.py, `all_local_devices`). The collectives of all workers share one table of group
    keys, in which groups of different strategies must not have the same key.
    """
    all_local_devices = getattr(mirrored_strategy, "all_local_devices", None)
    if all_local_devices is None:
        return  # see missing_parts
    prefix = f"/job:{task.task_type.value}/replica:0/task:{task.index}/"

    def own_devices(num_gpus: int | None = None) -> list[Any]:
        gpus = [device for device in tf.config.list_logical_devices("GPU") if device.name.startswith(prefix)]
        cpus = [device for device in tf.config.list_logical_devices("CPU") if device.name.startswith(prefix)]
        # Under other names there would be none: then it is TensorFlow's to choose.
        return gpus[:num_gpus] or cpus or all_local_devices(num_gpus)

    if getattr(all_local_devices, "is_own", False):
        return  # an earlier strategy of this process has done so
    own_devices.is_own = True  # type: ignore[attr-defined]
    mirrored_strategy.all_local_devices = own_devices
    tf.distribute.MirroredStrategy._collective_key_base = (1 + task.index) * _KEYS_PER_TASK


def gather_sizes_in_loops() -> None:
    """Lets what is gathered in a loop, as sparse gradients are, have another size in each iteration.

    A collective has one instance key for all iterations, and TensorFlow keeps the shape that the first one
    had (collective_param_resolver_local.cc, `Shape mismatch in the collective instance`). Here tensors are
    padded to one of a few sizes, each of which has a key of its own.
    """
    launcher = cross_device_utils.CollectiveReplicaLauncher
    original = launcher._all_gather
    if getattr(original, "takes_sizes", False):
        return

    def gather(self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
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

    gather.takes_sizes = True  # type: ignore[attr-defined]
    launcher._all_gather = gather


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


# Of what a strategy of raydist's own is made of (cluster/virtual_strategy.py).
CollectiveExtended = collective_all_reduce_strategy.CollectiveAllReduceExtended
MirroredVariable = distributed_values.MirroredVariable
regroup = distribute_utils.regroup
select_replica = distribute_utils.select_replica
update_regroup = distribute_utils.update_regroup
update_context = distribute_lib.UpdateContext


def create_mirrored_variable(
    strategy: tf.distribute.Strategy,
    create: Callable[..., list[Any]],
    *,
    mirrored_class: type,
    **options: Any,
) -> Any:
    """Returns a distributed variable of the copies that `create` returns, of a class of raydist's own."""
    classes = {
        key: mirrored_class if one is MirroredVariable else one
        for key, one in distribute_utils.VARIABLE_CLASS_MAPPING.items()
    }
    return distribute_utils.create_mirrored_variable(
        strategy, create, classes, distribute_utils.VARIABLE_POLICY_MAPPING, **options
    )


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


def observe_collectives(begin: Callable[[Any, str], Any], end: Callable[[Any, tf.Tensor, str], None]) -> None:
    """Observes each collective of this process, when it is traced or runs eagerly, for the last caller.

    Args:
      begin: Called with the collective's input and device, before it.
      end: Called with what `begin` returned, the collective's result and device.
    """
    launcher = cross_device_utils.CollectiveReplicaLauncher
    # All of the launcher's methods end in these two, for dense and for gathered tensors.
    for name in ("all_reduce", "_all_gather"):
        original = getattr(launcher, name)
        setattr(launcher, name, _observed(getattr(original, "original", original), begin, end))


def _observed(
    original: Callable[..., tf.Tensor],
    begin: Callable[[Any, str], Any],
    end: Callable[[Any, tf.Tensor, str], None],
) -> Callable[..., tf.Tensor]:
    @functools.wraps(original)
    def launch(self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        begun = begin(input_tensor, self._device)
        result = original(self, input_tensor, *args, **kwargs)
        end(begun, result, self._device)
        return result

    launch.original = original  # type: ignore[attr-defined]
    return launch


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
        owner, launcher = concrete_function.ConcreteFunction, cross_device_utils.CollectiveReplicaLauncher
        if not getattr(owner._call_flat, "tells_of_collectives", False):
            owner._call_flat = cls._told_call(owner._call_flat)
            for name in ("all_reduce", "_all_gather"):  # all of the launcher's methods end in these two
                setattr(launcher, name, cls._told_collective(getattr(launcher, name)))
            for name in ("broadcast_send", "broadcast_recv"):  # of a variable's first value
                setattr(collective_ops, name, cls._told_broadcast(getattr(collective_ops, name)))

    @classmethod
    def end(cls) -> None:
        """Tells nobody any more."""
        cls._keys, cls._tell = None, staticmethod(lambda begins: None)

    @classmethod
    def _told_call(cls, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def _call_flat(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_own = cls._keys is not None and threading.get_ident() == threading.main_thread().ident
            with cls.told() if is_own and _has_collectives(self) else contextlib.nullcontext():
                return original(self, *args, **kwargs)

        _call_flat.tells_of_collectives = True  # type: ignore[attr-defined]
        return _call_flat

    @classmethod
    def _told_collective(cls, original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        @functools.wraps(original)
        def launch(self: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
            is_told = self._collective_keys is cls._keys and self._device == cls._device
            with cls.told() if is_told else contextlib.nullcontext():
                return original(self, *args, **kwargs)

        return launch

    @classmethod
    def _told_broadcast(cls, original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
        @functools.wraps(original)
        def exchange(*args: Any, **kwargs: Any) -> tf.Tensor:
            with cls.told():
                return original(*args, **kwargs)

        return exchange

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


# Operations that call traced functions.
_CALLS = frozenset("PartitionedCall StatefulPartitionedCall While StatelessWhile If StatelessIf Case".split())


def _has_collectives(function: Any) -> bool:
    """Whether a trace, or one that it calls, has collectives."""
    known = vars(function).get("_raydist_has_collectives")
    if known is None:
        known = vars(function)["_raydist_has_collectives"] = _graph_has_collectives(function.graph, set())
    return bool(known)


def _graph_has_collectives(graph: Any, seen: set[int]) -> bool:
    if id(graph) in seen:
        return False
    seen.add(id(graph))
    operations = graph.get_operations()
    if any(op.type.startswith("Collective") for op in operations):
        return True
    called = (body for op in operations if op.type in _CALLS for body in bodies_of(op))
    return any(_graph_has_collectives(body, seen) for body in called)


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
    owner = polymorphic_function.Function
    original = owner.__call__
    if getattr(original, "inlines", False):
        return

    @functools.wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not inlined_functions.holds_for(self):
            return original(self, *args, **kwargs)
        if self._jit_compile and _is_one_of_several():
            on_compiled(self.name)
        return _inlined(self, args, kwargs)

    __call__.inlines = True  # type: ignore[attr-defined]
    owner.__call__ = __call__


def check_constant_rows() -> None:
    """Has a replica fail where the constant shape of a reshape or `set_shape` has not the rows of its tensor.

    Grappler drops a reshape that may be without effect: it takes a batch of unknown size for one of the
    size that is asked for (arithmetic_optimizer.cc and constant_folding.cc). `set_shape` checks nothing.
    With a part of the batch the model would go on without a word. EnsureShape is never dropped.
    """
    stock_reshape, stock_set = gen_array_ops.reshape, tensor_lib.Tensor.set_shape
    if getattr(stock_reshape, "checks_rows", False):
        return

    @functools.wraps(stock_reshape)
    def reshape(tensor: Any, shape: Any, name: str | None = None) -> tf.Tensor:
        made = stock_reshape(tensor, shape, name)
        is_traced = isinstance(made, tf.Tensor) and not context.executing_eagerly()
        if not is_traced or not made.shape.is_fully_defined() or not _is_one_of_several():
            return made
        given = made.op.inputs[0]
        if given.shape.is_fully_defined():
            return made
        may_be_same = given.shape.rank is not None and given.shape.is_compatible_with(made.shape)
        # Behind a reshape of another rank stands none that Grappler can join with it.
        return tf.ensure_shape(given if may_be_same else made, made.shape)

    @functools.wraps(stock_set)
    def set_shape(self: tf.Tensor, shape: Any) -> None:
        wanted = tf.TensorShape(shape)
        fixes_rows = bool(self.shape.rank and wanted.rank) and self.shape[0] is None and wanted[0] is not None
        is_traced_here = fixes_rows and self.graph is ops.get_default_graph() and _is_one_of_several()
        rows = tf.shape(self)[0] if is_traced_here else None
        stock_set(self, shape)
        if rows is not None:
            tf.debugging.assert_equal(rows, wanted[0], "set_shape")

    reshape.checks_rows = True  # type: ignore[attr-defined]
    gen_array_ops.reshape = reshape
    tensor_lib.Tensor.set_shape = set_shape


def key_traces_by_replica() -> None:
    """Has a `tf.function` that is called in eager steps keep a trace for each replica, and another outside.

    TensorFlow has the replica's device in the key of a trace, but only if the process has several
    (function_context.py). Losses are scaled by the number of replicas, and a replica may ask for its number.
    """
    original = function_context.make_function_context
    if getattr(original, "has_replica", False):
        return

    @functools.wraps(original)
    def make_function_context(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if not tf.executing_eagerly() or not _is_one_of_several():
            return made
        replica = tf.distribute.get_replica_context()
        number = tf.get_static_value(replica.replica_id_in_sync_group)
        # Any field that is compared; this one is otherwise for functions that are being saved.
        policy = made.context.variable_policy, replica.num_replicas_in_sync, int(number)
        return made._replace(context=made.context._replace(variable_policy=policy))

    make_function_context.has_replica = True  # type: ignore[attr-defined]
    function_context.make_function_context = make_function_context


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


def follow_synchronized(
    read: Callable[[Any, Callable[[Any], Any]], Any], assigned: Callable[[Any, Any], None]
) -> None:
    """Follows reads outside of replicas, and changes, of variables that are synchronized on read.

    TensorFlow reduces one over all replicas whenever it is read there (values.py, `_get_cross_replica`).

    Args:
      read: Called with the variable and a function of it that reduces it; returns its value.
      assigned: Called with the variable and the value that was assigned; None where it is added to, or where
        a checkpoint is read into it.
    """
    owner, util = distributed_values.SyncOnReadVariable, distributed_values.values_util
    reduce_, restore = owner._get_cross_replica, util.get_on_read_restore_ops
    if getattr(reduce_, "is_followed", False):
        return

    def _get_cross_replica(self: Any) -> Any:
        return read(self, reduce_)

    def restored(variable: Any, *args: Any, **kwargs: Any) -> Any:
        assigned(variable, None)
        return restore(variable, *args, **kwargs)

    def followed(original: Callable[..., Any], *, is_whole: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, value, *args, **kwargs)
            assigned(self, value if is_whole else None)
            return result

        return assign

    _get_cross_replica.is_followed = True  # type: ignore[attr-defined]
    owner._get_cross_replica, util.get_on_read_restore_ops = _get_cross_replica, restored
    for name in ("assign", "assign_add", "assign_sub"):
        setattr(owner, name, followed(getattr(owner, name), is_whole=name == "assign"))


def is_synchronized_on_read(variable: object) -> bool:
    """Whether reading `variable` outside a replica is a collective, so that every worker has to read it."""
    synchronization = getattr(variable, "synchronization", None)
    return synchronization == tf.VariableSynchronization.ON_READ


def assign_of_first_replica(variable: Any) -> None:
    """Lets the replicas of central_storage assign a variable that was made without an aggregation."""
    if getattr(variable, "_aggregation", None) == tf.VariableAggregation.NONE:
        variable._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA


def is_in_replica() -> bool:
    """Whether this is called by a strategy's `run`, and neither in its scope alone nor outside of it."""
    is_outside = is_default(tf.distribute.get_strategy())
    return not is_outside and tf.distribute.get_replica_context() is not None


def is_in_update() -> bool:
    """Whether this is called by `StrategyExtended.update`."""
    return distribute_lib.get_update_replica_id() is not None


def updated_device() -> str:
    """Returns the device of the variable that ParameterServerStrategy updates (`_update`)."""
    device: str = distribute_lib.get_update_replica_id()
    return device


def local_value(variable: Any) -> tf.Tensor:
    """Returns the value of a `tf.Variable` in this process, in any scope.

    Of a distributed one it is the first local copy, which is four times as fast to read as what the strategy
    chooses: the copies of one that is not synchronized on read are equal.
    """
    copies = () if is_synchronized_on_read(variable) else getattr(variable, "values", ())
    return (copies[0] if copies else variable).read_value()


def make_variables_convertible() -> None:
    """Gives distributed variables the conversions that plain variables and those of central_storage have.

    TensorFlow lacks them (distribute/values.py): `int` and `float` raise a TypeError, and NumPy fails in the
    strategy's scope. Reading one that is synchronized on read, such as a metric's, is a collective, as its
    `numpy()` is. `bool` stays true for each, because TensorFlow finds out with it whether it was given one
    (mirrored_strategy.py, `_broadcast_to`).
    """
    conversions: dict[str, Callable[..., Any]] = {
        "__int__": lambda self: int(self.numpy()),
        "__float__": lambda self: float(self.numpy()),
        "__complex__": lambda self: complex(self.numpy()),
        "__array__": lambda self, dtype=None, copy=None: np.array(self.numpy(), dtype=dtype),
    }
    for name, convert in conversions.items():
        if not hasattr(distributed_values.DistributedVariable, name):
            setattr(distributed_values.DistributedVariable, name, convert)


_prepares: dict[str, Callable[[], Callable[[], None]]] = {}


def prepare_replica_threads(prepare: Callable[[], Callable[[], None]]) -> None:
    """Has each `strategy.run` on several devices of this process call `prepare`, one function of each module.

    What that returns is called first in the thread of each replica. TensorFlow makes new threads each time
    (mirrored_run.py, `_call_for_each_replica`), and hands over its own thread-local state alone.
    """
    name = "_get_thread_local_configuration_callable"
    original = getattr(mirrored_run, name, None)
    if original is None:
        return  # see missing_parts
    _prepares[prepare.__module__] = prepare
    original = getattr(original, "__wrapped__", original)  # not what this has put there before

    @functools.wraps(original)
    def callables() -> set[Callable[[], None]]:
        return {*original(), *(one() for one in _prepares.values())}

    setattr(mirrored_run, name, callables)


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


def global_random_variables() -> list[tf.Variable]:
    """Returns the state of `tf.random.get_global_generator()`, if somebody has asked for that."""
    generator = stateful_random_ops.global_generator
    return [] if generator is None else [generator.state]


def default_strategy() -> tf.distribute.Strategy:
    """Returns the strategy outside of every scope."""
    return distribute_lib._get_default_strategy()


def is_default(strategy: tf.distribute.Strategy) -> bool:
    """Whether it is the strategy outside of every scope, which has no devices to distribute to."""
    return strategy is distribute_lib._get_default_strategy()


def _assign_on_one_copy(method: str) -> Callable[..., Any]:
    def assign(variable: Any, value: Any, read_value: bool = True) -> Any:
        return getattr(variable._get_replica(0), method)(value, read_value=read_value)

    return assign


_ON_ONE_COPY = {
    f"on_read_{method}_cross_replica": _assign_on_one_copy(method)
    for method in ("assign", "assign_add", "assign_sub")
}


# The last part of the names of nodes, inside of `as_one_of`, whose values all replicas have.
REDUCED = "reduced_over_replicas"


@contextlib.contextmanager
def as_one_of(
    num_replicas: int,
    *,
    on_question: Callable[[], None] = lambda: None,
    on_reduction: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Leaves the strategy's scope, and lets every strategy say that it has that many replicas.

    For tracing a step as if it ran on one device, or on one replica of several, without any collective:
    the replica context is that of the default strategy, whose reductions return what they are given.

    Args:
      on_question: Called when the number of replicas is asked for.
      on_reduction: Called when something is reduced over replicas.
    """
    all_reduce = distribute_lib.ReplicaContext.all_reduce

    def answer(self: Any) -> int:
        on_question()
        return num_replicas

    def noted_all_reduce(self: Any, *args: Any, **kwargs: Any) -> Any:
        on_reduction()
        reduced = all_reduce(self, *args, **kwargs)
        return tf.nest.map_structure(
            lambda one: tf.identity(one, name=REDUCED) if isinstance(one, tf.Tensor) else one, reduced
        )

    with (
        changed(distribute_lib.StrategyBase, num_replicas_in_sync=property(answer)),
        changed(distribute_lib.ReplicaContext, all_reduce=noted_all_reduce),
        # Reading one enters the scope of its own strategy, where it is reduced over the workers.
        changed(
            distributed_values.SyncOnReadVariable,
            _get_cross_replica=lambda self: self._get_replica(0).read_value(),
        ),
        # Outside of a replica TensorFlow refuses to add to one whose copies are summed.
        changed(distributed_values.values_util, **_ON_ONE_COPY),
        inlined_functions(),
    ):
        distribute_lib._push_per_thread_mode(distribute_lib._get_default_replica_mode())
        try:
            yield
        finally:
            distribute_lib._pop_per_thread_mode()


@contextlib.contextmanager
def meaning_over(num_replicas: int) -> Iterator[None]:
    """Inside of `as_one_of`, lets a mean over replicas return this replica's part of it, as a sum does."""
    all_reduce = distribute_lib.ReplicaContext.all_reduce

    def part(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        parts = all_reduce(self, reduce_op, value, options)
        is_mean = str(getattr(reduce_op, "value", reduce_op)).upper() == "MEAN"
        return tf.nest.map_structure(lambda one: one / num_replicas, parts) if is_mean else parts

    with changed(distribute_lib.ReplicaContext, all_reduce=part):
        yield


@contextlib.contextmanager
def made_in_scope(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Makes variables eagerly in a strategy's scope, also inside of `as_one_of` and of what is being traced.

    `tf.init_scope` alone keeps the graph being traced, and the scopes entered there: `as_one_of` has left the
    strategy's, and in a scope entered twice each copy of a variable is distributed again, which fails.
    """
    with tf.init_scope(), tf.Graph().as_default(), context.eager_mode(), strategy.scope():
        yield


def distributed(variable: Any) -> Any:
    """Returns the mirrored variable that a replica's copy belongs to; any other variable itself."""
    if isinstance(variable, tf.distribute.DistributedValues):
        return variable
    # TensorFlow hangs a weak reference on the copy or on its handle (distribute/values.py).
    for holder in (variable, variable.handle):
        container: Callable[[], Any] | None = getattr(holder, "_distributed_container", None)
        if container is not None and container() is not None:
            return container()
    return variable


def _variables_in(graph: Any) -> list[Any]:
    """Returns the variables that a traced function has seen; of distributed ones their copies."""
    is_whole = distributed_values.DistributedVariable
    return [copy for one in graph.variables for copy in (one.values if isinstance(one, is_whole) else (one,))]


def captured_variables(graph: Any) -> list[Any]:
    """Returns the variables that a traced function uses, whole ones if distributed, alike in each process."""
    by_handle = {id(one.handle): one for one in _variables_in(graph)}  # in an order that differs
    found = (distributed(by_handle[id(outer)]) for outer, _ in graph.captures if id(outer) in by_handle)
    return list({id(one): one for one in found}.values())


# The first input is the variable, one of the others its new value.
ASSIGNMENTS = (
    *("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatterUpdate"),
    *("ResourceScatterAdd", "ResourceScatterSub", "ResourceStridedSliceAssign"),
)


def assigned_variables(graph: Any) -> list[Any]:
    """Returns the variables outside of a traced function that it assigns to, whole ones if distributed."""
    assigned = {op.inputs[0].op.name for op in graph.get_operations() if op.type in ASSIGNMENTS}
    return variables_named(graph, assigned)


def variables_named(graph: Any, nodes: Collection[str]) -> list[Any]:
    """Returns the variables outside of a traced function that these nodes of it stand for, whole ones."""
    handles = {id(outer) for outer, inner in graph.captures if inner.op.name in nodes}
    found = [distributed(one) for one in _variables_in(graph) if id(one.handle) in handles]
    return list({id(one): one for one in found}.values())


def captured_by(placeholder: tf.Tensor) -> Any:
    """Returns the tensor of outside that stands for `placeholder` in a traced function; None for an argument.

    It is symbolic if the function is part of another one, as the body of a loop is.
    """
    captures = getattr(placeholder.graph, "captures", ())
    return next((outer for outer, inner in captures if inner is placeholder), None)


def changed_variables(graph: Any) -> list[Any]:
    """Returns the variables outside of a traced function that it changes, whole ones if distributed.

    What functions that it calls change is among them: TensorFlow itself sets these in order by what each call
    only reads (auto_control_deps.py).
    """
    read_only = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    by_handle = {id(one.handle): one for one in _variables_in(graph)}
    outside = {id(inner): id(outer) for outer, inner in graph.captures}
    handles = [outside.get(id(one)) for index, one in enumerate(graph.inputs) if index not in read_only]
    found = [distributed(by_handle[handle]) for handle in handles if handle in by_handle]
    return list({id(one): one for one in found}.values())


# Reads a variable in the current graph.
Read = Callable[[], tf.Tensor]


def replace_reads(read: Callable[[Any, Read], tf.Tensor]) -> None:
    """Replaces how this process reads variables in graphs: calls `read(variable, original)` instead.

    All reads of a whole variable end in the method that this replaces.
    """
    original = resource_variable_ops.BaseResourceVariable._read_variable_op
    if hasattr(original, "__wrapped__"):
        return  # of an earlier closure

    @functools.wraps(original)
    def _read_variable_op(self: Any, no_copy: bool = False) -> tf.Tensor:
        if tf.executing_eagerly():
            return original(self, no_copy)
        return read(self, lambda: original(self, no_copy))

    resource_variable_ops.BaseResourceVariable._read_variable_op = _read_variable_op


def read_unseen(variable: Any) -> tf.Tensor:
    """Returns a variable's value in a graph without telling those who watch what is read.

    A function with a custom gradient, for example, has to know the gradients of all variables that it reads.
    """
    return gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype)


def recorded_read(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """Returns `value` as what gradient tapes take for the value of `variable` (resource_variable_ops.py)."""
    resource_variable_ops.variable_accessed(variable)
    variable._variable_read = True
    with record.stop_recording():
        result = tf.identity(value)  # of its own, as a tape knows a tensor by where it came from last
    record.record_operation(
        "ReadVariableOp",
        [result],
        [variable.handle],
        backward_function=lambda gradient: [gradient],
        forward_function=lambda tangent: [tangent],
    )
    return result


def is_recording() -> bool:
    """Whether a gradient tape is active."""
    return bool(record.could_possibly_record())


def not_recording() -> contextlib.AbstractContextManager[None]:
    """No gradient tape records what is made inside."""
    return record.stop_recording()


def has_tangent(variable: Any, graph: Any) -> bool:
    """Whether a `tf.autodiff.ForwardAccumulator` watches a variable in a function's graph."""
    return bool(forwardprop_util.pack_tangents([graph.capture(variable.handle)]).tangents)


class Writes(NamedTuple):
    """Operations that write a variable: `updates` inside of `StrategyExtended.update`, and others."""

    updates: int
    others: int


def num_writes(variable: Any, graph: Any) -> Writes:
    """Returns how many operations of a function's graph write a variable so far, or may do so."""
    writers = writers_of(variable, graph)
    # An update is colocated with its variable (parameter_server_strategy.py, `_update`).
    own = f"loc:@{graph.capture(variable.handle).op.name}".encode()
    updates = sum(own in op.colocation_groups() for op in writers)
    return Writes(updates, len(writers) - updates)


def ids_of(variables: Sequence[Any]) -> set[int]:
    """Returns what identifies variables, also those of Keras 3, among those of a traced function.

    What holds no variable has none, such as the vocabulary that tf_keras lists among a layer's weights.
    """
    plain = (one if isinstance(one, tf.Variable) else getattr(one, "value", None) for one in variables)
    return {id(distributed(one)) for one in plain if isinstance(one, tf.Variable)}


def writers_of(variable: Any, graph: Any) -> list[tf.Operation]:
    """Returns the operations of a function's graph so far that write a variable, or may do so."""
    handle = graph.capture(variable.handle)
    return [op for op in handle.consumers() if auto_control_deps_utils._op_writes_to_resource(handle, op)]


def added_number(writers: Iterable[tf.Operation]) -> int | None:
    """Returns what these operations add to an integer variable; None if they do anything else."""
    added = 0
    for op in writers:
        number = tf.get_static_value(op.inputs[1]) if op.type == "AssignAddVariableOp" else None
        if number is None or not op.inputs[1].dtype.is_integer:
            return None
        added += int(number)
    return added


def parts_of(variable: Any) -> list[Any]:
    """Returns the `tf.Variable`s that a variable of TensorFlow or Keras consists of: shards, one, or none."""
    if isinstance(variable, ShardedVariable):
        return list(variable.variables)
    if isinstance(variable, tf.Variable):
        return [variable]
    # A Keras 3 variable wraps the tf.Variable. Among tf_keras's weights are handlers of lookup tables, whose
    # vocabulary the train function makes again.
    wrapped = getattr(variable, "value", None)
    return [wrapped] if isinstance(wrapped, tf.Variable) else []


def is_among(variable: Any, others: Sequence[Any]) -> bool:
    """Whether a variable is one of the others; a strategy's wrappers are looked through."""
    return not _handles_of([variable]).isdisjoint(_handles_of(others))


def _handles_of(variables: Sequence[Any]) -> set[int]:
    return {id(part.handle) for one in variables for part in getattr(one, "values", (one,))}


def reads_any(tensor: tf.Tensor, variables: Sequence[Any]) -> bool:
    """Whether a tensor of a graph depends on one of the variables, which may be distributed ones."""
    handles = _handles_of(variables)
    inside = {id(inner) for outer, inner in tensor.graph.captures if id(outer) in handles} | handles
    return any(id(one) in inside for op in ops_behind(tensor) for one in op.inputs)


def ops_behind(*tensors: tf.Tensor) -> Iterator[tf.Operation]:
    """Yields each operation that tensors of a graph are computed by, once."""
    ahead, seen = [one.op for one in tensors], set[int]()
    while ahead:
        op = ahead.pop()
        if id(op) not in seen:
            seen.add(id(op))
            yield op
            ahead += [one.op for one in op.inputs]


def computes_same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors of a graph are computed alike from the same variables and inputs.

    Functions that operations call, such as the branches of a condition, are not looked into.
    """
    ahead, seen = [(one, other)], set[tuple[int, int]]()
    while ahead:
        first, second = ahead.pop()
        if first is second or (id(first), id(second)) in seen:
            continue
        seen.add((id(first), id(second)))
        if not _are_alike(first, second):
            return False
        ahead += zip(first.op.inputs, second.op.inputs, strict=True)
    return True


def _are_alike(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether two tensors are the same output of operations that differ in nothing but their inputs."""
    first, second = ((each.op.type, each.value_index, len(each.op.inputs)) for each in (one, other))
    if first != second or one.op.type == "Placeholder":
        return False
    attributes, others = one.op.node_def.attr, other.op.node_def.attr
    return all(
        name in others and (value.HasField("func") or value == others[name])
        for name, value in attributes.items()
        if name != "_class"
    )


def bodies_of(op: tf.Operation) -> list[Any]:
    """Returns the graphs of the functions that an operation of a traced function calls."""
    names = [one.func.name for _, one in sorted(op.node_def.attr.items()) if one.HasField("func")]
    names += [one.name for attr in op.node_def.attr.values() for one in attr.list.func]
    if op.type in ("While", "StatelessWhile"):  # sorted: body, cond
        names.reverse()
    functions = [op.graph._get_function(name) for name in names]
    return [one.graph for one in functions if getattr(one, "graph", None) is not None]


# Operations that have a state and only read it, or have one of their own that nothing else sees.
_HARMLESS = frozenset(
    "VarHandleOp ReadVariableOp _ReadVariablesOp ResourceGather ResourceGatherNd VarIsInitializedOp "
    "VariableShape VariableV2 HashTableV2 LookupTableFindV2 LookupTableSizeV2 LookupTableExportV2 Assert "
    "CheckNumericsV2 Placeholder StatefulPartitionedCall If While Case TensorArrayV3 TensorArrayReadV3 "
    "TensorArrayWriteV3 TensorArrayGatherV3 TensorArrayScatterV3 TensorArraySizeV3 "
    "ParameterizedTruncatedNormal".split()
)
# Of which TensorFlow knows no state, but which call Python.
_PYTHON = frozenset(("PyFunc", "PyFuncStateless", "EagerPyFunc"))


class WithoutEffects:
    """Computes the outputs of a function, in a list, and does nothing else.

    A `tf.function` runs all that changes something, such as an assignment or a summary, in its order. Here it
    is left out.

    Attributes:
      graph: All that the function was traced to.
      inputs: The tensors in it that its arguments consist of.
      needed: A graph of what the outputs need.
      effects: The types of operations that the outputs need, and that do more than compute them, such as
        calling Python. With any of them it cannot be called.
    """

    def __init__(self, function: Callable[..., Sequence[tf.Tensor]], *specs: Any) -> None:
        """Traces `function`, whose arguments have the structures of `specs`."""

        def on_flat(*flat: tf.Tensor) -> Sequence[tf.Tensor]:
            # By its name tf_keras takes it for one of TensorFlow 1 (base_layer_utils.py,
            # `is_in_tf_function`).
            tf.compat.v1.get_default_graph().name = "raydist_without_effects"
            return function(*tf.nest.pack_sequence_as(specs, list(flat), expand_composites=True))

        flat_specs = tf.nest.flatten(specs, expand_composites=True)
        traced = tf.compat.v1.wrap_function(
            on_flat, [tf.TensorSpec(one.shape, one.dtype) for one in flat_specs]
        )
        self.graph: tf.Graph = traced.graph
        # Behind them come variables and other tensors from outside.
        self.inputs: list[tf.Tensor] = traced.inputs[: len(flat_specs)]
        self._traced = traced
        self._run = traced.prune(self.inputs, traced.outputs)
        self.needed: tf.Graph = self._run.graph
        self.effects = sorted(_effects_in(self.needed.get_operations(), set()))

    def used_by(self, tensors: Sequence[tf.Tensor]) -> Iterator[tf.Operation]:
        """Yields each operation that the outputs need, or what has effects, or `tensors` of the graph."""
        changing = [op for op in self.graph.get_operations() if _effects_in([op], set())]
        return ops_behind(*self._traced.outputs, *(one for op in changing for one in op.inputs), *tensors)

    def __call__(self, *args: Any) -> list[tf.Tensor]:
        """Returns the outputs.

        Raises:
          ValueError: There are `effects`.
        """
        self._check_effects()
        return list(self._run(*tf.nest.flatten(args, expand_composites=True)))

    def _check_effects(self) -> None:
        if self.effects:
            raise ValueError(f"what is computed needs {', '.join(self.effects)}, which have effects")

    def given(self, tensors: Sequence[tf.Tensor]) -> Callable[..., list[tf.Tensor]]:
        """Returns a function of a list of values, which take the place of `tensors`, and of the arguments.

        It computes the outputs from these values, and not what is ahead of the tensors in the graph.
        """
        if not tensors:
            return lambda values, *args: self(*args)
        run = self._traced.prune([*self.inputs, *tensors], self._traced.outputs)

        def call(values: Sequence[Any], *args: Any) -> list[tf.Tensor]:
            self._check_effects()
            return list(run(*tf.nest.flatten(args, expand_composites=True), *values))

        return call

    def other_scalars(self) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns the scalar variables that are 0 now, as `given` takes them, and other values for them.

        Real ones are then 1, and whole numbers 1000, as a count of steps is when training has begun.
        """
        reads = [
            op.outputs[0]
            for op in self.needed.get_operations()
            if op.type == "ReadVariableOp" and op.outputs[0].shape.rank == 0
        ]
        reads = [self.graph.get_tensor_by_name(one.name) for one in reads if one.dtype in _COUNTED]
        values = self._traced.prune([], reads)() if reads else []
        zeros = [one for one, value in zip(reads, values, strict=True) if value == 0]
        return zeros, [tf.constant(1.0 if one.dtype.is_floating else 1000, one.dtype) for one in zeros]


_COUNTED = (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64)


def _effects_in(operations: Iterable[tf.Operation], seen: set[int]) -> set[str]:
    found = set[str]()
    for op in operations:
        is_harmless = op.type in _HARMLESS or op.type.startswith("Cudnn") or draws_by_own_seed(op.type)
        if op.type in _PYTHON or (has_state(op.type) and not is_harmless):
            found.add(op.type)
        for body in bodies_of(op):
            if id(body) not in seen:
                seen.add(id(body))
                found |= _effects_in(body.get_operations(), seen)
    return found


def without_retracing_warnings(function: Any) -> Any:
    """Returns a `tf.function` of raydist's, of which TensorFlow does not count how often it is traced.

    It counts by the code (polymorphic_function.py, `_get_key_for_call_stats`), and takes the functions of
    several loops for one that is traced again and again.
    """
    function._omit_frequent_tracing_warning = True
    return function


# What stands for numbers that are drawn, by type of operation: dropouts then keep all, and noise is the same
# for each example. Of whole numbers the position of the input that has the least.
_DRAWS: Mapping[str, float] = {
    **dict.fromkeys(("RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2"), 0.9375),
    **dict.fromkeys(("RandomStandardNormal", "StatelessRandomNormal", "StatelessRandomNormalV2"), 0.5),
    **dict.fromkeys(("TruncatedNormal", "StatelessTruncatedNormal", "StatelessTruncatedNormalV2"), 0.5),
}
_INTEGER_DRAWS: Mapping[str, int] = {
    "RandomUniformInt": 1,
    "StatelessRandomUniformInt": 2,
    "StatelessRandomUniformIntV2": 4,
}

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
        number, least = _DRAWS.get(op_type), _INTEGER_DRAWS.get(op_type)
        drawn = original(self, op_type, inputs, *args, **kwargs)
        is_generator = op_type == "RngReadAndSkip"  # which moves a generator on
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
    if hasattr(dataset_ops.DatasetV2.map, "__wrapped__"):
        return
    stock_map, stock_seed = dataset_ops.DatasetV2.map, random_seed.get_seed

    @functools.wraps(stock_seed)
    def get_seed(op_seed: Any) -> Any:
        seeds = stock_seed(op_seed)
        is_in_map = _Maps.has_drawn is not None or _Maps.graph is not None
        if op_seed is not None or context.executing_eagerly() or not is_in_map:
            return seeds
        if _Maps.has_drawn is not None:
            _Maps.has_drawn = True
        return seeds[0], _OpSeed(seeds[1])

    @functools.wraps(stock_map)
    def map_anew(self: Any, map_func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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

    random_seed.get_seed = get_seed
    dataset_ops.DatasetV2.map = map_anew
    for name, stateless in _STATELESS.items():
        setattr(gen_random_ops, name, _drawn_by_element(getattr(gen_random_ops, name), stateless))


def _drawn_by_element(stock: Callable[..., Any], stateless: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def draw(*args: Any, seed: int = 0, seed2: int = 0, **kwargs: Any) -> Any:
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


# What TensorFlow reduces over workers (ops/collective_ops.cc, `CollectiveReduceV2`).
_REDUCED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def exchange_each_type(
    *,
    known_spec: Callable[[tf.TensorSpec], tf.TensorSpec],
    as_known: Callable[[tf.Tensor], tf.Tensor],
    from_known: Callable[[tf.Tensor, tf.DType], tf.Tensor],
) -> None:
    """Lets workers exchange variables of types that collectives do not take, and gradients of several types.

    TensorFlow concatenates gradients whatever their types are (`batch_all_reduce`), which fails.

    Args:
      known_spec, as_known, from_known: How a tensor is sent, see collectives.py.
    """
    send, receive = collective_ops.broadcast_send, collective_ops.broadcast_recv
    launcher = cross_device_utils.CollectiveReplicaLauncher
    all_reduce, batch_all_reduce = launcher.all_reduce, launcher.batch_all_reduce

    def sent_by_chief(t: tf.Tensor, shape: Any, dtype: tf.DType, *args: Any, **kwargs: Any) -> tf.Tensor:
        spec = known_spec(tf.TensorSpec(shape, dtype))
        return from_known(send(as_known(t), spec.shape, spec.dtype, *args, **kwargs), dtype)

    def received(shape: Any, dtype: tf.DType, *args: Any, **kwargs: Any) -> tf.Tensor:
        spec = known_spec(tf.TensorSpec(shape, dtype))
        return from_known(receive(spec.shape, spec.dtype, *args, **kwargs), dtype)

    def reduced(self: Any, input_tensor: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        dtype = tf.as_dtype(input_tensor.dtype)
        if dtype in _REDUCED:
            return all_reduce(self, input_tensor, *args, **kwargs)
        return from_known(all_reduce(self, as_known(input_tensor), *args, **kwargs), dtype)

    def reduced_by_type(self: Any, input_tensor_packs: Any, options: Any = None) -> list[Any]:
        tensors = [one for pack in input_tensor_packs for one in pack]
        if all(len({one.dtype for one in pack}) == 1 for pack in input_tensor_packs):
            return list(batch_all_reduce(self, input_tensor_packs, options))
        places: dict[Any, list[int]] = {}
        for place, one in enumerate(tensors):
            places.setdefault(one.dtype, []).append(place)
        packs = [[tensors[place] for place in of_type] for of_type in places.values()]
        found = zip(itertools.chain(*places.values()), batch_all_reduce(self, packs, options), strict=True)
        return [one for _, one in sorted(found, key=lambda pair: pair[0])]

    if send.__module__ == collective_ops.__name__:
        collective_ops.broadcast_send, collective_ops.broadcast_recv = sent_by_chief, received
        launcher.all_reduce, launcher.batch_all_reduce = reduced, reduced_by_type


class FreedIterators:
    """Frees iterators of `tf.data` in threads of their own, and waits for each only as long as most take.

    TensorFlow's destructor of an iterator waits for the thread that tunes it. `StartCancel` in
    framework/cancellation.cc wakes that thread before `IsCancelled` is true, so in
    `Model::OptimizeLoop` (framework/model.cc) it may sleep once more: as long as the iterator has lived, at
    most 60 s. In TensorFlow 2.21 this happens to one iterator of ten, such as at the end of an epoch.

    Attributes:
      longest_s: How long to wait for an iterator; -1 for as long as it takes.
    """

    longest_s = 0.1
    _pending: ClassVar[set[Any]] = set()
    _resources = (
        (iterator_ops.OwnedIterator, "_iterator_resource"),
        (multi_device_iterator_ops.OwnedMultiDeviceIterator, "_multi_device_iterator_resource"),
    )

    @classmethod
    def begin(cls) -> None:
        for of, name in cls._resources:
            of.__del__ = functools.partialmethod(cls._free, name)
        atexit.register(cls._wait)  # TensorFlow's own objects go next

    @classmethod
    def wait_for_all(cls) -> None:
        """Waits for each from now on, as TensorFlow does: one whose files are needed again, for example."""
        cls.longest_s = -1

    @staticmethod
    def _free(iterator: Any, name: str) -> None:
        cls, held = FreedIterators, [*vars(iterator).values()]
        is_eager = isinstance(vars(iterator).get(name), tf.__internal__.EagerTensor)
        if not is_eager or sys.is_finalizing():
            return
        vars(iterator).clear()  # functions of its data set hold on to the resource, too
        # Not one of `threading`: its locks may be held where Python collects garbage.
        freed = _thread.allocate_lock()
        freed.acquire()
        cls._pending.add(freed)

        def free() -> None:
            held.clear()
            cls._pending.discard(freed)
            freed.release()

        _thread.start_new_thread(free, ())
        if freed.acquire(timeout=cls.longest_s):
            freed.release()

    @classmethod
    def _wait(cls) -> None:
        for freed in list(cls._pending):
            freed.acquire()


def per_worker_iterators(
    coordinator: Any,
    strategy: tf.distribute.Strategy,
    pipelines: Callable[[tf.Tensor], Any] | Sequence[Callable[[], Any]],
    *,
    check: Callable[[Any], None],
) -> tuple[Any, Any]:
    """Makes an iterator in each worker's own process, and again when a worker comes back.

    `ClusterCoordinator.create_per_worker_dataset` makes the same dataset for all workers, and its
    InputContext says that there is one (parameter_server_strategy_v2.py,
    `_distribute_datasets_from_function`); here each worker's knows its number.

    Args:
      pipelines: A function of the worker's number (scalar int64 tensor) that returns its dataset, or a
        function without arguments for each worker.
      check: Called with each traced pipeline; raises for one that no worker could run.

    Returns:
      The iterators, to be given to `coordinator.schedule`, and the structure of an element.
    """
    workers = coordinator._cluster.workers
    if callable(pipelines):
        traced = tf.function(pipelines, autograph=False).get_concrete_function(tf.TensorSpec([], tf.int64))
        makers: Sequence[Any] = [
            lambda index=index: traced(tf.constant(index, tf.int64)) for index in range(len(workers))
        ]
        check(traced)
        dataset = traced.structured_outputs
    else:
        concrete = [tf.function(make, autograph=False).get_concrete_function() for make in pipelines]
        for one in concrete:
            check(one)
        dataset, makers = concrete[0].structured_outputs, concrete
    remote_values = []
    for worker, make in zip(workers, makers, strict=True):
        remote_value = worker.create_resource(lambda make=make: iter(make()))
        # As in coordinator/values.py, PerWorkerDatasetFromDatasetFunction.__iter__.
        remote_value._type_spec = input_lib.get_iterator_spec_from_dataset(strategy, dataset)
        remote_values.append(remote_value)
    spec = tf.nest.map_structure(lambda one: getattr(one, "_value_specs", [one])[0], dataset.element_spec)
    return values.PerWorkerDistributedIterator(tuple(remote_values)), spec


def worker_numbers(coordinator: Any) -> Any:
    """Makes each worker's number (scalar int32), to be given to `coordinator.schedule`."""
    remote_values = []
    for index, worker in enumerate(coordinator._cluster.workers):
        remote_value = worker.create_resource(lambda index=index: tf.constant(index, tf.int32))
        remote_value._type_spec = tf.TensorSpec([], tf.int32)
        remote_values.append(remote_value)
    return values.PerWorkerValues(tuple(remote_values))


def register(name: str, function: Callable[..., Any]) -> None:
    """Lets `call_registered` call a function of this process, for as long as the process lives."""
    _registered[name] = function
    script_ops._py_funcs._funcs[name] = function  # which holds it weakly


_registered: dict[str, Callable[..., Any]] = {}


def call_registered(name: str, inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]) -> Sequence[tf.Tensor]:
    """Calls, with NumPy arrays, what is registered as `name` in the process that runs the op.

    `tf.numpy_function` pins its op to the process that makes the graph
    (tensorflow-notes.md#clustercoordinator).
    """
    return gen_script_ops.py_func(input=list(inputs), token=name, Tout=list(types))


def spec_of(per_worker_values: Any) -> Any:
    """Returns the type of one worker's value, for tracing."""
    return per_worker_values._values[0]._type_spec


def is_fetched(remote_value: Any) -> bool:
    """Whether a scheduled function is done and its result is on the coordinator.

    A `RemoteValue` can only be waited for, one after the other, and while a result is still on its
    way from a worker that dies, waiting raises although the function is about to be run again.
    """
    return bool(remote_value._has_fetched_to_local)


@contextlib.contextmanager
def traced_for_workers(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Says that what is traced inside is meant for the workers, as `ClusterCoordinator.schedule` does.

    Otherwise TensorFlow warns of each `strategy.run` that it might run on the coordinator. In the
    scope, because an optimizer may make its variables while a step is traced. Functions are inlined: an
    optimizer does not work in a nested one, and a trace would hold what one closure has read.
    """
    with changed(strategy.extended, _being_scheduled=True), strategy.scope(), inlined_functions():
        yield


class Transformation(enum.Enum):
    """What one dataset of `tf.data` makes of its input, of those that raydist can put elsewhere."""

    MAP = "map"
    BATCH = "batch"
    PADDED_BATCH = "padded_batch"
    REPEAT = "repeat"
    TAKE = "take"
    SKIP = "skip"
    PREFETCH = "prefetch"
    OPTIONS = "with_options"
    CARDINALITY = "assert_cardinality"


# The classes that `tf.data.Dataset`'s methods return, and what is read of each besides its input.
TRANSFORMATIONS: dict[type, tuple[Transformation, tuple[str, ...]]] = {
    map_op._MapDataset: (Transformation.MAP, ("_map_func",)),
    map_op._ParallelMapDataset: (Transformation.MAP, ("_map_func", "_num_parallel_calls")),
    batch_op._BatchDataset: (Transformation.BATCH, ("_batch_size", "_drop_remainder")),
    batch_op._ParallelBatchDataset: (
        Transformation.BATCH,
        ("_batch_size", "_drop_remainder", "_num_parallel_calls"),
    ),
    padded_batch_op._PaddedBatchDataset: (
        Transformation.PADDED_BATCH,
        ("_batch_size", "_drop_remainder", "_padded_shapes", "_padding_values"),
    ),
    repeat_op._RepeatDataset: (Transformation.REPEAT, ("_count",)),
    take_op._TakeDataset: (Transformation.TAKE, ("_count",)),
    skip_op._SkipDataset: (Transformation.SKIP, ("_count",)),
    prefetch_op._PrefetchDataset: (Transformation.PREFETCH, ("_buffer_size",)),
    dataset_ops._OptionsDataset: (Transformation.OPTIONS, ()),
    cardinality_op._AssertCardinalityDataset: (Transformation.CARDINALITY, ("_expected_cardinality",)),
}


def transformation_of(dataset: tf.data.Dataset) -> Transformation | None:
    """Returns what a dataset makes of its input; None for what raydist cannot put elsewhere."""
    kind, names = TRANSFORMATIONS.get(type(dataset), (None, ()))
    return kind if all(hasattr(dataset, name) for name in ("_input_dataset", *names)) else None


def input_of(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the input of a dataset that is one of `TRANSFORMATIONS`."""
    return dataset._input_dataset


def inputs_of(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the inputs of any dataset."""
    return list(dataset._inputs())


def nodes_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all that it is made of."""
    yield dataset
    for one in inputs_of(dataset):
        yield from nodes_of(one)


def functions_of(dataset: tf.data.Dataset) -> list[DataFunction]:
    """Returns the functions that any dataset calls."""
    return [DataFunction(one) for one in dataset._functions()]


class PythonGenerator:
    """What a dataset of `from_generator` calls for each pass over it."""

    def __init__(self, state: Any, args: tuple[Any, ...]) -> None:
        self._state = state
        self._args = args

    @property
    def function(self) -> Callable[..., Any]:
        return self._state._generator

    def begin(self) -> Iterator[Any]:
        """Begins a pass."""
        return iter(self.function(*(one.numpy() for one in self._args)))

    def replace(self, function: Callable[..., Any]) -> None:
        """Has the next passes call another function, with the same arguments."""
        self._state._generator = function


def generator_of(dataset: tf.data.Dataset) -> PythonGenerator | None:
    """Returns the generator of a dataset of `from_generator`; None of others.

    It is a flat_map of a function of from_generator_op.py, whose cells hold the generator and its arguments.
    """
    function: Any = getattr(getattr(dataset, "_map_func", None), "_func", None)
    if not str(getattr(function, "__module__", "")).endswith(".from_generator_op"):
        return None
    begin = inspect.getclosurevars(function).nonlocals.get("get_iterator_id_fn")
    cells = inspect.getclosurevars(begin).nonlocals if inspect.isfunction(begin) else {}
    state, args = cells.get("generator_state"), cells.get("args", ())
    if not hasattr(state, "_generator") or not all(hasattr(one, "numpy") for one in args):
        return None
    return PythonGenerator(state, args)


def plain_variable(value: int, dtype: tf.DType) -> tf.Variable:
    """Returns a variable that no strategy mirrors, also in a strategy's scope."""
    return resource_variable_ops.ResourceVariable(value, dtype=dtype)


def count_saves_alone() -> None:
    """Has a `tf.train.Checkpoint` make its count of saves in each worker for itself, also in a scope.

    A variable of the strategy would get its value from the chief, so that all workers would have to save.
    """
    original = checkpoint.add_variable
    if getattr(original, "is_alone", False):
        return

    @functools.wraps(original)
    def add_variable(*args: Any, **kwargs: Any) -> Any:
        with changed(ops.get_default_graph(), _variable_creator_stack=[]):
            return original(*args, **kwargs)

    add_variable.is_alone = True  # type: ignore[attr-defined]
    checkpoint.add_variable = add_variable


def reshuffles(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset draws another order, or other numbers, for each pass over it."""
    if isinstance(dataset, random_op._RandomDataset):
        return bool(getattr(dataset, "_rerandomize", False))
    is_shuffle = isinstance(dataset, shuffle_op._ShuffleDataset)
    return is_shuffle and getattr(dataset, "_reshuffle_each_iteration", True) is not False


def name_of_transformation(dataset: tf.data.Dataset) -> str:
    """Returns what made a dataset, in the words of a pipeline: `flat_map`, for example."""
    words = type(dataset).__name__.strip("_").removeprefix("Parallel").removesuffix("Dataset")
    return "".join(f"_{one.lower()}" if one.isupper() else one for one in words).lstrip("_")


def parameter(dataset: tf.data.Dataset, name: str) -> Any:
    """Returns one of the values in `TRANSFORMATIONS`; None where the dataset has no such."""
    found = getattr(dataset, name, None)
    return found.numpy().item() if isinstance(found, tf.Tensor) and found.shape.rank == 0 else found


def is_out_of_order(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset was made with `deterministic=False`, or by a function that makes such a one."""
    if getattr(dataset, "_deterministic", None) == "false":
        return True
    graphs = [one.graph for one in functions_of(dataset) if one.graph is not None]
    if any(_is_sloppy(op.node_def) for graph in graphs for op in graph.get_operations()):
        return True
    # It keeps its option in its operation alone.
    return isinstance(dataset, interleave_op._ParallelInterleaveDataset) and _has_sloppy_operation(dataset)


def _has_sloppy_operation(dataset: tf.data.Dataset) -> bool:
    held = [one for node in nodes_of(dataset) for one in getattr(node, "_tensors", ())]
    if sum(one.shape.num_elements() or 0 for one in held) > _MOST_COPIED:
        return False
    try:
        serialized = dataset._as_serialized_graph(
            external_state_policy=options_lib.ExternalStatePolicy.IGNORE
        ).numpy()
    except tf.errors.OpError:  # a generator, for example, is in no graph
        return False
    graph = tf.compat.v1.GraphDef.FromString(serialized)
    return any(_is_sloppy(node) and node.op.startswith("ParallelInterleave") for node in graph.node)


# Values in the tensors of a dataset, which its graph has a copy of.
_MOST_COPIED = 1_000_000


def _is_sloppy(node: Any) -> bool:
    return "deterministic" in node.attr and node.attr["deterministic"].s == b"false"


def moved(dataset: tf.data.Dataset, onto: tf.data.Dataset) -> tf.data.Dataset:
    """Returns `onto` transformed as `dataset`'s input is; not for functions, nor for batches."""
    match transformation_of(dataset):
        case Transformation.REPEAT | Transformation.TAKE | Transformation.SKIP as kind:
            return getattr(onto, kind.value)(dataset._count)
        case Transformation.PREFETCH:
            return onto.prefetch(parameter(dataset, "_buffer_size"))
        case Transformation.CARDINALITY:
            return onto.apply(tf.data.experimental.assert_cardinality(dataset._expected_cardinality))
        case Transformation.OPTIONS:
            return onto  # which belong to the pipeline as a whole
        case _:
            raise ValueError(f"{name_of_transformation(dataset)} cannot be moved")


class DataFunction:
    """A function of a dataset, as it was traced (data/ops/structured_function.py)."""

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    @property
    def name(self) -> str:
        function = self._wrapper._func
        return getattr(function, "__qualname__", None) or type(function).__name__

    @property
    def is_users(self) -> bool:
        """Whether it is the user's, and not of TensorFlow, raydist or another installed package."""
        function = inspect.unwrap(self._wrapper._func)
        is_own = getattr(function, "__module__", "").partition(".")[0] not in ("tensorflow", "raydist")
        code = getattr(function, "__code__", None)
        folders = set() if code is None else set(Path(code.co_filename).parts)
        return is_own and not folders & {"site-packages", "dist-packages"}

    @property
    def graph(self) -> tf.Graph | None:
        """The traced graph; None for a function of TensorFlow 1."""
        return getattr(self._wrapper.function, "graph", None)

    @property
    def spec(self) -> Any:
        """The structure of what it returns."""
        return self._wrapper.output_structure

    def __call__(self, element: Any) -> Any:
        """Returns what the traced function, which is not traced again, makes of an element."""
        inputs = structure.to_tensor_list(self._wrapper._input_structure, element)
        outputs = self._wrapper.function(*inputs)
        return structure.from_compatible_tensor_list(self._wrapper.output_structure, outputs)

    def on_rows(self, batch: Any) -> Any:
        """Returns what it makes of some rows of a batch, also where it was traced for batches of one size.

        In a graph, of tensors alone: it is made again there, with its shapes.
        """
        traced = self._wrapper.function.graph
        outer = tf.compat.v1.get_default_graph()
        given = [
            *tf.nest.flatten(batch),
            *(outer.capture(one) for one in self._wrapper.function.captured_inputs),
        ]
        outputs = tf.graph_util.import_graph_def(
            traced.as_graph_def(),
            input_map={inner.name: one for inner, one in zip(traced.inputs, given, strict=True)},
            return_elements=[one.name for one in traced.outputs],
            name="rows",
        )
        return tf.nest.pack_sequence_as(self._wrapper.output_structure, outputs)


def draws_by_own_seed(op_type: str) -> bool:
    """Whether an operation draws by a seed that it was given when it was traced.

    Those of cuDNN have one for a dropout that Keras does not ask of them.
    """
    definition = op_def_registry.get(op_type)
    if definition is None or op_type.startswith("Cudnn"):
        return False
    return definition.is_stateful and any(attr.name == "seed2" for attr in definition.attr)


def has_state(op_type: str) -> bool:
    """Whether TensorFlow runs an operation for more than its outputs, or with more than its inputs."""
    definition = op_def_registry.get(op_type)
    return definition is not None and bool(definition.is_stateful)
