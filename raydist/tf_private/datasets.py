"""Datasets of `tf.data`: what each one makes of its input, its functions and its iterators."""

from __future__ import annotations

import _thread
import atexit
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import tensorflow as tf
from tensorflow.python.data.experimental.ops import cardinality as cardinality_op, data_service_ops
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
    return list(dataset._inputs())


def nodes_of(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """Yields a dataset and all that it is made of."""
    yield dataset
    for one in inputs_of(dataset):
        yield from nodes_of(one)


def is_of_data_workers(dataset: tf.data.Dataset) -> bool:
    """Whether a dataset reads from tf.data service."""
    return any(isinstance(one, data_service_ops._DataServiceDatasetV2) for one in nodes_of(dataset))


def functions_of(dataset: tf.data.Dataset) -> list[DataFunction]:
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
    """Returns what a dataset was made with, such as `batch_size`; None where it has no such."""
    found = getattr(dataset, f"_{name}", None)
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
            return onto.prefetch(parameter(dataset, "buffer_size"))
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
        for output, inner in zip(outputs, traced.outputs, strict=True):
            if inner.shape.rank:  # what Python has set in the traced one, as for a lookup in a table
                output.set_shape([None, *inner.shape[1:]])
        return tf.nest.pack_sequence_as(self._wrapper.output_structure, outputs)


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
