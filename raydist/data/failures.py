"""Finds what a source raised in what TensorFlow made of it."""

from __future__ import annotations

import re

from raydist.errors import DataError

# What ops/script_ops.py passes on of an exception: its traceback, as text.
_RAISED = re.compile(r"raydist\.errors\.DataError: (.+)")


def data_error_in(error: BaseException) -> DataError | None:
    """Returns the DataError that a source raised inside of TensorFlow; None where there was none."""
    if not type(error).__module__.startswith("tensorflow"):
        return None
    found = _RAISED.search(str(error))
    return None if found is None else DataError(found[1])
