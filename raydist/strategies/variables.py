"""Reads and writes the variables of models and optimizers as whole NumPy arrays.

Arrays are kept in the order in which Keras lists the variables, with path, shape and type beside
them, so that a checkpoint fits any strategy and any number of workers, and one that does not fit
the model is told apart by name.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.errors import CheckpointError, UnsupportedError
from raydist.strategies import tensorflow_internals

ARRAYS_NAME = "variables.npz"
INDEX_NAME = "variables.json"


def variables_of(name: str, trackable: Any) -> list[Any]:
    """Returns the `tf.Variable`s of a model, an optimizer, a metric, a `tf.Module` or a variable.

    Raises:
      UnsupportedError: `trackable` holds none that raydist knows how to find.
    """
    if isinstance(trackable, tf.Variable):
        return [trackable]
    if isinstance(trackable, (list, tuple)):
        return [variable for one in trackable for variable in variables_of(name, one)]
    found = getattr(trackable, "variables", None)
    found = found() if callable(found) else found
    if found is None:
        raise UnsupportedError(
            f"{name} is {type(trackable).__name__}, which has no variables; "
            "give models, optimizers, metrics, tf.Modules or tf.Variables"
        )
    # A Keras 3 variable wraps the tf.Variable.
    return [variable if isinstance(variable, tf.Variable) else variable.value for variable in found]


def read(groups: Mapping[str, Sequence[Any]], *, is_chief: bool) -> dict[str, bytes] | None:
    """Returns the files that hold the variables, or None in a task that is not the chief.

    Every task has to call it: reading a variable that is synchronized on read (a metric, tf_keras's
    moving statistics) is a collective. What needs no collective is read by the chief alone.
    """
    arrays: dict[str, np.ndarray] = {}
    index = []
    for group, variables in groups.items():
        for position, variable in enumerate(variables):
            if not is_chief and not tensorflow_internals.is_synchronized_on_read(variable):
                continue
            array = variable.numpy()
            key = _key(group, position)
            index.append(
                {"key": key, "name": _name(variable), "shape": list(array.shape), "dtype": str(array.dtype)}
            )
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
    wanted = {
        _key(group, position): variable
        for group, variables in groups.items()
        for position, variable in enumerate(variables)
    }
    saved_here = {key for key in saved if key.rpartition("/")[0] in groups}
    if saved_here != set(wanted):
        raise CheckpointError(
            f"checkpoint {checkpoint} holds {len(saved_here)} variables of {', '.join(groups)}, "
            f"the model has {len(wanted)}; the model or its optimizer changed since: start a new run, "
            "or restore the old code"
        )
    with np.load(io.BytesIO(files[ARRAYS_NAME]), allow_pickle=False) as arrays:
        for key, variable in wanted.items():
            entry = saved[key]
            if tuple(entry["shape"]) != tuple(variable.shape):
                raise CheckpointError(
                    f"checkpoint {checkpoint} has {entry['name']} with shape {entry['shape']}, the model has "
                    f"{_name(variable)} with {list(variable.shape)}; start a new run, or restore the old code"
                )
            array = arrays[key]
            variable.assign(
                array if str(array.dtype) == entry["dtype"] else array.view(variable.dtype.as_numpy_dtype)
            )


def _key(group: str, position: int) -> str:
    return f"{group}/{position:05d}"


def _name(variable: Any) -> str:
    return str(getattr(variable, "path", None) or variable.name)
