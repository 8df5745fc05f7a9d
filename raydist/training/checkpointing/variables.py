"""Reads and writes the variables of models and optimizers as whole NumPy arrays.

Arrays are kept in the order in which Keras lists the variables, with path, shape and type beside
them, so that a checkpoint fits any strategy and any number of workers, and one that does not fit
the model is told apart by name. A variable that ParameterServer keeps in shards, and its optimizer
slots, are stored as one array each, so the number of ps may change.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import tensorflow as tf

from raydist import tf_private
from raydist.errors import CheckpointError, UnsupportedError
from raydist.storage.checkpoint_marker import ARRAYS_NAME, INDEX_NAME, OF_WORKERS, REPLICAS, digest_of
from raydist.tf_private import ShardedVariable
from raydist.training.checkpointing.npz import NpzArrays, NpzBuffer
from raydist.training.cluster import virtual_strategy
from raydist.training.cluster.collectives import summed_by_tree

logger = logging.getLogger(__name__)

_LOOKED_AT = 2**18  # elements
_LARGE_BYTES = 2**24
_COPY_THREADS = 4
_MOST_COPIED_BYTES = 2**26  # of all replicas' copies of a variable


def variables_of(name: str, trackable: Any) -> list[Any]:
    """Returns the `tf.Variable`s of a model, optimizer, metric, random generator, `tf.Module` or variable.

    Raises:
      UnsupportedError: `trackable` holds none that raydist knows how to find.
    """
    if isinstance(trackable, (tf.Variable, ShardedVariable)):
        return tf_private.parts_of(trackable)
    if isinstance(trackable, (list, tuple)):
        return [variable for one in trackable for variable in variables_of(name, one)]
    if isinstance(trackable, tf.random.Generator) or type(trackable).__name__ == "SeedGenerator":
        return tf_private.parts_of(trackable.state)
    found = getattr(trackable, "variables", None)
    found = found() if callable(found) else found
    if found is None:
        raise UnsupportedError(
            f"{name} is {type(trackable).__name__}, which has no variables; "
            "give models, optimizers, metrics, random generators, tf.Modules or tf.Variables"
        )
    rate = getattr(trackable, "learning_rate", None)
    if isinstance(rate, tf.Variable) and not any(rate is variable for variable in found):
        found = [*found, rate]  # tf_keras's optimizers do not list it, and callbacks change it
    return [part for variable in found for part in tf_private.parts_of(variable)]


# Returns what each replica has of some variables, `[num_replicas, ...]`, by one collective.
Copies = Callable[[Sequence[Any]], Sequence[np.ndarray]]


class Snapshots:
    """Copies variables to host memory, and keeps that memory for the next time.

    Fresh memory costs as much again as the copy: the system has to find and clear each page of it.
    """

    def __init__(self) -> None:
        self._buffer: NpzBuffer | None = None

    def take(
        self,
        groups: Mapping[str, Sequence[Any]],
        *,
        is_chief: bool,
        copies: Copies | None = None,
        averaged: Collection[Any] = (),
    ) -> Snapshot | None:
        """Returns a copy of the variables as they are now, or None in a task that is not the chief.

        Every task has to call it: reading a variable that is synchronized on read (a metric, tf_keras's
        moving statistics) is a collective. What needs no collective is read by the chief alone. The
        snapshot before is overwritten.

        Args:
          copies: None where there is but one replica, or each variable is the same for all. What it returns
            is saved beside sums and means, so that as many replicas continue with the same bits.
          averaged: Variables that each replica changes for itself, of which the mean is saved.
        """
        wholes = _whole_variables(groups)
        of_replicas = {} if copies is None else _of_replicas(wholes, copies, averaged)
        summed = {key: [whole] for key, (whole, _) in of_replicas.items()}
        if not is_chief:
            for key, whole in wholes.items():
                if key not in summed and tf_private.is_synchronized_on_read(whole.parts[0]):
                    whole.read()
            return None
        entries = {key: whole.stored_as() for key, whole in wholes.items()}
        stacks = {_copies_key(key, wholes[key]): stack for key, (_, stack) in of_replicas.items()}
        entries |= {key: (stack.shape, stack.dtype) for key, stack in stacks.items()}
        if self._buffer is None or self._buffer.entries != entries:
            self._buffer = None  # two of them would not fit
            self._buffer = NpzBuffer(entries)
        values = ((key, summed[key] if key in summed else whole.read()) for key, whole in wholes.items())
        _fill(self._buffer, values)
        for key, stack in stacks.items():
            self._buffer.fill(key, [stack])
        described = [(key, whole, whole.shape, whole.numpy_dtype) for key, whole in wholes.items()]
        for key, stack in stacks.items():
            whole = wholes[key.removeprefix(OF_WORKERS).removeprefix(REPLICAS)]
            described.append((key, whole, stack.shape, stack.dtype))
        index = [
            {"key": key, "name": whole.name, "shape": list(shape), "dtype": str(np.dtype(dtype))}
            for key, whole, shape, dtype in described
        ]
        return Snapshot(self._buffer, json.dumps(index).encode())


def _fill(buffer: NpzBuffer, values: Iterable[tuple[str, list[np.ndarray]]]) -> None:
    """Copies values, large ones in several threads, as training waits: one core has not all the bandwidth.

    Few at once: what is not in this host's memory, or read as a copy, would come to as much again.
    """
    num_threads = min(_COPY_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(num_threads, "raydist-copy") as pool:
        copying: deque[Future[None]] = deque()
        for key, parts in values:
            if parts[0].nbytes < _LARGE_BYTES:
                buffer.fill(key, parts)
                continue
            if len(copying) == num_threads:
                copying.popleft().result()
            copying.append(pool.submit(buffer.fill, key, parts))
        for one in copying:
            one.result()


@dataclass(frozen=True)
class Snapshot:
    """Variables in host memory, of which training changes nothing any more."""

    _arrays: NpzBuffer
    _index: bytes

    def files(self) -> dict[str, bytes]:
        """Returns the files that hold them. Any thread may call it; it reads all of the memory once."""
        # Whoever takes bytes to write or to sum up takes a view of them, and a copy would be large.
        arrays = cast(bytes, self._arrays.seal())
        return {ARRAYS_NAME: arrays, INDEX_NAME: self._index}

    def non_finite(self) -> list[str]:
        """Returns the names of the variables that hold NaN or an infinity. Reads all of the memory once."""
        return [
            entry["name"]
            for entry in json.loads(self._index)
            if not entry["key"].startswith(REPLICAS)
            and not _is_finite(self._arrays.array(entry["key"]), np.dtype(entry["dtype"]))
        ]

    def digest(self) -> str:
        """Returns what `digest_of` makes of the variables. Reads all of the memory once."""
        return digest_of((entry, self._arrays.content(entry["key"])) for entry in json.loads(self._index))


def _is_finite(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    if dtype.kind in "biu":
        return True
    try:  # bfloat16 and the like are kept as bytes
        flat = array.reshape(-1).view(dtype)
        # In parts: the pages of one large result would cost more than the looking.
        parts = (flat[first : first + _LOOKED_AT] for first in range(0, flat.size, _LOOKED_AT))
        return all(np.isfinite(part).all() for part in parts)
    except TypeError:  # integers of 4 bits, of which NumPy knows nothing
        return True


def groups_in(files: Mapping[str, bytes]) -> set[str]:
    """Returns the names of the groups that a snapshot holds."""
    return {entry["key"].rpartition("/")[0] for entry in json.loads(files[INDEX_NAME])}


def count_in(files: Mapping[str, bytes], group: str) -> int:
    """Returns how many variables a snapshot holds of a group; one in shards counts once."""
    keys = (entry["key"] for entry in json.loads(files[INDEX_NAME]))
    return sum(key.rpartition("/")[0] == group for key in keys)


def other_replicas(groups: Mapping[str, Sequence[Any]], files: Mapping[str, bytes]) -> str | None:
    """Returns a sentence if a snapshot is of another number of virtual replicas; None if it is not."""
    own = (one for group in groups.values() for one in group if virtual_strategy.is_own(one))
    if (first := next(own, None)) is None:
        return None
    stacked = (one for one in json.loads(files[INDEX_NAME]) if one["key"].startswith(REPLICAS))
    saved = next((one["shape"][0] for one in stacked if not one["key"].startswith(OF_WORKERS)), None)
    now = first.distribute_strategy.num_replicas_in_sync
    if saved == now:
        return None
    had = "none" if saved is None else str(saved)
    return (
        f"the checkpoint is of a run with {had} in place of {now} virtual replicas, so the results are those "
        "of neither number"
    )


def write(groups: Mapping[str, Sequence[Any]], files: Mapping[str, bytes], *, checkpoint: str) -> None:
    """Assigns what a snapshot holds. Every task calls it with the same files.

    Raises:
      CheckpointError: The checkpoint does not fit; names the first variable that differs.
    """
    saved = {entry["key"]: entry for entry in json.loads(files[INDEX_NAME])}
    wanted = _whole_variables(groups)
    saved_here = {key for key in saved if key.rpartition("/")[0] in groups}
    if saved_here != set(wanted):
        raise CheckpointError(
            f"checkpoint {checkpoint} holds {len(saved_here)} variables of {', '.join(groups)}, "
            f"the model has {len(wanted)}; the model or its optimizer changed since: start a new run, "
            "or restore the old code; build an unbuilt optimizer by optimizer.build(variables)"
        )
    arrays = NpzArrays(files[ARRAYS_NAME])
    for key, whole in wanted.items():
        entry = saved[key]
        if not whole.takes(entry["shape"]):
            raise CheckpointError(
                f"checkpoint {checkpoint} has {entry['name']} with shape {entry['shape']}, the model has "
                f"{whole.name} with {list(whole.shape)}; start a new run, or restore the old code"
            )
        array = arrays[key]
        if str(array.dtype) != entry["dtype"]:
            array = array.view(whole.numpy_dtype).reshape(entry["shape"])
        whole.write(array)
        if (copies := _copies_key(key, whole)) in saved:
            _write_copies(whole.parts[0], arrays[copies])


def build_optimizers(trackables: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Builds the optimizers without variables yet of which a snapshot holds some.

    Each for the trainable variables of one of the others, or of all: those for which it then has variables of
    the saved shapes. Where that is not one answer, nothing is built, and `write` says what does not fit.
    """
    saved: dict[str, list[tuple[int, ...]]] = {}
    for entry in json.loads(files[INDEX_NAME]):
        saved.setdefault(entry["key"].rpartition("/")[0], []).append(tuple(entry["shape"]))
    trained = [
        list(one.trainable_variables)
        for one in trackables.values()
        if hasattr(one, "trainable_variables") and not hasattr(one, "apply_gradients")
    ]
    candidates = [*trained, *([[one for given in trained for one in given]] if len(trained) > 1 else [])]
    for name, one in trackables.items():
        is_unbuilt = hasattr(one, "apply_gradients") and hasattr(one, "build")
        if not is_unbuilt or len(variables_of(name, one)) >= len(saved.get(name, ())):
            continue
        fitting = [given for given in candidates if _shapes_when_built(one, given) == saved[name]]
        if len(fitting) == 1:
            one.build(fitting[0])


def _shapes_when_built(optimizer: Any, trained: Sequence[Any]) -> list[tuple[int, ...]] | None:
    """Returns the shapes of an optimizer's variables for these; None where there can be no second one."""
    try:
        another = type(optimizer).from_config(optimizer.get_config())
        another.build(list(trained))
    except Exception as error:  # code of the user's own
        logger.info("optimizer %s is not built before its first step: %s", type(optimizer).__name__, error)
        return None
    return [whole.shape for whole in _whole_variables({"": variables_of("", another)}).values()]


@dataclass(frozen=True)
class _Whole:
    """One logical variable: a `tf.Variable`, or the shards of one in their order."""

    parts: tuple[Any, ...]

    @property
    def name(self) -> str:
        return _stem(self.parts[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Its value's: a variable may be made for values of several shapes."""
        first = self.parts[0].shape
        if not first.is_fully_defined():
            first = tf_private.local_value(self.parts[0]).shape
        if len(self.parts) == 1:
            return tuple(first)
        return (sum(part.shape[0] for part in self.parts), *first[1:])

    def takes(self, shape: Sequence[int]) -> bool:
        """Whether a value of this shape can be assigned."""
        if len(self.parts) == 1:
            return bool(self.parts[0].shape.is_compatible_with(shape))
        return tuple(shape) == self.shape

    @property
    def numpy_dtype(self) -> Any:
        return self.parts[0].dtype.as_numpy_dtype

    def stored_as(self) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Returns shape and type in the file. What .npz has no name for, such as bfloat16, is bytes there."""
        dtype = np.dtype(self.numpy_dtype)
        if dtype.kind in "biufc":
            return self.shape, dtype
        return (math.prod(self.shape) * dtype.itemsize,), np.dtype(np.uint8)

    def read(self) -> list[np.ndarray]:
        """Returns the parts' values, to be copied at once: on a CPU they are the variables' own memory."""
        return [np.asarray(tf_private.local_value(part)) for part in self.parts]

    def write(self, array: np.ndarray) -> None:
        if len(self.parts) == 1:
            self.parts[0].assign(array)
            return
        start = 0
        for part in self.parts:
            part.assign(array[start : start + part.shape[0]])
            start += part.shape[0]


def _of_replicas(
    wholes: Mapping[str, _Whole], copies: Copies, averaged: Collection[Any]
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns, by key, what the replicas have together of what each has for itself, and each's.

    Together it is the sum of what is summed, of other floats the mean, of other numbers the first one's.
    What is made outside of the scope has no copies of replicas.
    """
    means = {id(one) for one in averaged}
    firsts = ((key, whole.parts[0]) for key, whole in wholes.items() if len(whole.parts) == 1)
    own = {
        key: one
        for key, one in firsts
        if isinstance(one, tf.distribute.DistributedValues)
        and (virtual_strategy.is_own(one) or id(one) in means or _is_copied(one))
    }
    if not own:
        return {}
    found = {}
    for (key, variable), stack in zip(own.items(), copies(list(own.values())), strict=True):
        is_sum = variable.aggregation == tf.VariableAggregation.SUM and id(variable) not in means
        is_equal = not is_sum and all(one.tobytes() == stack[0].tobytes() for one in stack)
        if is_equal or not (is_sum or variable.dtype.is_floating):
            whole = stack[0]
        else:
            is_virtual = virtual_strategy.is_own(variable)
            total = summed_by_tree(stack) if is_virtual else np.sum(stack, axis=0, dtype="float64")
            whole = np.asarray(total if is_sum else total / len(stack)).astype(stack.dtype)
        # What .npz has no name for, such as bfloat16, is bytes there.
        found[key] = whole, stack if stack.dtype.kind in "biufc" else _as_bytes(stack)
    return found


def _as_bytes(stack: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(stack).reshape(len(stack), -1).view(np.uint8)


def _copies_key(key: str, whole: _Whole) -> str:
    return f"{REPLICAS if virtual_strategy.is_own(whole.parts[0]) else OF_WORKERS}{key}"


def _write_copies(variable: Any, stack: np.ndarray) -> None:
    """Assigns each replica of this worker what it had for itself, if there were as many."""
    strategy: Any = getattr(variable, "distribute_strategy", None)
    is_distributed = isinstance(variable, tf.distribute.DistributedValues)
    if is_distributed and strategy.num_replicas_in_sync == len(stack):
        own = getattr(strategy, "own_replicas", None)
        own = tf_private.own_replicas(strategy, len(variable.values)) if own is None else own
        for copy, replica in zip(variable.values, own, strict=True):
            copy.assign(stack[replica].view(variable.dtype.as_numpy_dtype).reshape(variable.shape))


def _is_copied(variable: Any) -> bool:
    """Whether a checkpoint holds each replica's value, and not only what TensorFlow reads of all of them.

    Not of large ones, as each worker gets all copies.
    """
    aggregations = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN
    if getattr(variable, "aggregation", None) not in aggregations or not variable.dtype.is_floating:
        return False
    if not tf_private.is_synchronized_on_read(variable) or not variable.shape.is_fully_defined():
        return False
    num_replicas = variable.distribute_strategy.num_replicas_in_sync
    return num_replicas * variable.shape.num_elements() * variable.dtype.size <= _MOST_COPIED_BYTES


def _whole_variables(groups: Mapping[str, Sequence[Any]]) -> dict[str, _Whole]:
    """Returns the logical variables by key, in the order in which their first part stands in its group."""
    found: dict[str, _Whole] = {}
    for group, variables in groups.items():
        parts: dict[object, list[Any]] = {}
        for variable in variables:
            # A shard and its optimizer slots alike are told by their names (parameter_server_strategy_v2.py,
            # `_create_variable`, which adds `/part_0`); slots know nothing of their variable's shards.
            parts.setdefault(_whole_of(variable, parts), []).append(variable)
        for position, same in enumerate(parts.values()):
            found[f"{group}/{position:05d}"] = _Whole(tuple(sorted(same, key=_part_number)))
    return found


def _whole_of(variable: Any, parts: Mapping[object, Sequence[Any]]) -> object:
    """Returns the key in `parts` of the variable that this one is, or is a shard of."""
    if _PART.search(_name(variable)) is None:
        return id(variable)
    # Two submodels may have layers of one name; each has its own part 0.
    count = 0
    while any(_part_number(one) == _part_number(variable) for one in parts.get((_stem(variable), count), ())):
        count += 1
    return _stem(variable), count


_PART = re.compile(r"/part_([0-9]+)(?=[:/]|$)")


def _stem(variable: Any) -> str:
    return _PART.sub("", _name(variable))


def _part_number(variable: Any) -> int:
    match = _PART.search(_name(variable))
    return int(match[1]) if match else 0


def _name(variable: Any) -> str:
    # Only what a distributed variable has itself: for any other attribute it asks its value, which is a
    # collective where it is synchronized on read (distribute/values.py, `DistributedDelegate.__getattr__`).
    return str(variable.name)
