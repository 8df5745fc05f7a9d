"""Finds what a source raised in what TensorFlow made of it."""

from __future__ import annotations

import re

from raydist.errors import DataError, StorageError

# What ops/script_ops.py passes on of an exception: its traceback, as text.
_RAISED = re.compile(r"raydist\.errors\.(DataError|StorageError): (.+)")
_ASSERTED = re.compile(r"assertion failed: \[raydist\.errors\.DataError: (.+)\]")


def data_error_in(error: BaseException) -> DataError | StorageError | None:
    """Returns what a source raised inside of TensorFlow; None where it was none of these errors."""
    if not type(error).__module__.startswith("tensorflow"):
        return None
    if asserted := _ASSERTED.search(str(error)):
        return DataError(asserted[1])
    found = _RAISED.search(str(error))
    if found is None:
        return None
    return DataError(found[2]) if found[1] == "DataError" else StorageError(found[2])


def asserted(message: str) -> str:
    """Returns what a graph's `tf.Assert` has to say for a DataError with this message."""
    return f"raydist.errors.DataError: {message}"
