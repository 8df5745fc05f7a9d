"""What a source raised, found in what TensorFlow made of it."""

from __future__ import annotations

import pytest

from raydist.data.failures import asserted, data_error_in
from raydist.errors import DataError, StorageError


class UnknownError(Exception):
    """As TensorFlow's own."""


UnknownError.__module__ = "tensorflow.python.framework.errors_impl"

TRACEBACK = """{{function_node __wrapped__IteratorGetNext}} raydist.errors.%s: column a has 1 null in x
Traceback (most recent call last):

  File "script_ops.py", line 272, in __call__
    return func(device, token, args)
"""


@pytest.mark.parametrize("kind", [DataError, StorageError])
def test_error_of_a_source_is_found_by_its_class(kind: type[Exception]) -> None:
    found = data_error_in(UnknownError(TRACEBACK % kind.__name__))
    assert type(found) is kind
    assert str(found) == "column a has 1 null in x"


def test_assertion_of_a_graph_is_found() -> None:
    text = f"assertion failed: [{asserted('image /a[1].png has the shape [5 6 3]')}]\n\t [[{{{{node x}}}}]]"
    assert str(data_error_in(UnknownError(text))) == "image /a[1].png has the shape [5 6 3]"


def test_other_errors_are_none_of_a_source() -> None:
    assert data_error_in(UnknownError("assertion failed: [the user's own]")) is None
    assert data_error_in(ValueError("raydist.errors.DataError: as text only")) is None
