"""Reads and writes the variables of models and optimizers as whole NumPy arrays.

Arrays are kept in the order in which Keras lists the variables, with path, shape and type beside
them, so that a checkpoint fits any strategy and any number of workers, and one that does not fit
the model is told apart by name. A variable that ParameterServer keeps in shards, and its optimizer
slots, are stored as one array each, so the number of ps may change.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.errors import CheckpointError, UnsupportedError
from raydist.strategies import tensorflow_internals
from raydist.strategies.tensorflow_internals import ShardedVariable

ARRAYS_NAME = "variables.npz"
INDEX_NAME = "variables.json"


def variables_of(name: str, trackable: Any) -> list[Any]:
    """Returns the `tf.Variable`s of a model, an optimizer, a metric, a `tf.Module` or a variable.

    Raises:
      UnsupportedError: `trackable` holds none that raydist knows how to find.
    """
    if isinstance(trackable, (tf.Variable, ShardedVariable)):
        return _parts_of(trackable)
    if isinstance(trackable, (list, tuple)):
        return [variable for one in trackable for variable in variables_of(name, one)]
    found = getattr(trackable, "variables", None)
    found = found() if callable(found) else found
    if found is None:
        raise UnsupportedError(
            f"{name} is {type(trackable).__name__}, which has no variables; "
            "give models, optimizers, metrics, tf.Modules or tf.Variables"
        )
    return [part for variable in found for part in _parts_of(variable)]


def _parts_of(variable: Any) -> list[Any]:
    if isinstance(variable, ShardedVariable):
        return list(variable.variables)
    # A Keras 3 variable wraps the tf.Variable.
    return [variable if isinstance(variable, tf.Variable) else variable.value]


def read(groups: Mapping[str, Sequence[Any]], *, is_chief: bool) -> dict[str, bytes] | None:
    """Returns the files that hold the variables, or None in a task that is not the chief.

    Every task has to call it: reading a variable that is synchronized on read (a metric, tf_keras's
    moving statistics) is a collective. What needs no collective is read by the chief alone.
    """
    arrays: dict[str, np.ndarray] = {}
    index = []
    for key, whole in _whole_variables(groups).items():
        if not is_chief and not tensorflow_internals.is_synchronized_on_read(whole.parts[0]):
            continue
        array = whole.read()
        index.append({"key": key, "name": whole.name, "shape": list(array.shape), "dtype": str(array.dtype)})
        arrays[key] = array if array.dtype.kind in "biufcSU" else array.view(np.uint8)
    if not is_chief:
        return None
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # numpy's stub takes the keywords for flags
    return {ARRAYS_NAME: buffer.getvalue(), INDEX_NAME: json.dumps(index).encode()}


def write(groups: Mapping[str, Sequence[Any]], files: Mapping[str, bytes], *, checkpoint: str) -> None:
    """Assigns what `read` returned. Every task calls it with the same files.

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
            "or restore the old code"
        )
    with np.load(io.BytesIO(files[ARRAYS_NAME]), allow_pickle=False) as arrays:
        for key, whole in wanted.items():
            entry = saved[key]
            if tuple(entry["shape"]) != whole.shape:
                raise CheckpointError(
                    f"checkpoint {checkpoint} has {entry['name']} with shape {entry['shape']}, the model has "
                    f"{whole.name} with {list(whole.shape)}; start a new run, or restore the old code"
                )
            array = arrays[key]
            whole.write(array if str(array.dtype) == entry["dtype"] else array.view(whole.numpy_dtype))


@dataclass(frozen=True)
class _Whole:
    """One logical variable: a `tf.Variable`, or the shards of one in their order."""

    parts: tuple[Any, ...]

    @property
    def name(self) -> str:
        return _stem(self.parts[0])

    @property
    def shape(self) -> tuple[int, ...]:
        first = tuple(self.parts[0].shape)
        if len(self.parts) == 1:
            return first
        return (sum(part.shape[0] for part in self.parts), *first[1:])

    @property
    def numpy_dtype(self) -> Any:
        return self.parts[0].dtype.as_numpy_dtype

    def read(self) -> np.ndarray:
        values = [part.numpy() for part in self.parts]
        return values[0] if len(values) == 1 else np.concatenate(values)

    def write(self, array: np.ndarray) -> None:
        if len(self.parts) == 1:
            self.parts[0].assign(array)
            return
        start = 0
        for part in self.parts:
            part.assign(array[start : start + part.shape[0]])
            start += part.shape[0]


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
    return str(getattr(variable, "path", None) or variable.name)
