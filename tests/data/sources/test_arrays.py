"""from_arrays: which arrays are examples."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from raydist import data
from raydist.errors import DataError


def test_rows_of_a_structure_are_examples() -> None:
    x = {"b": np.arange(12, dtype="float32").reshape(6, 2), "a": np.arange(6) > 2}
    source = data.from_arrays(x, (list("abcdef"), np.arange(6, dtype="uint8")))
    assert source.structure == ({"b": 1, "a": 0}, (2, 3))
    assert [(field.name, field.shape, field.dtype.kind) for field in source.fields] == [
        ("0.a", (), "b"),
        ("0.b", (2,), "f"),
        ("1.0", (), "O"),
        ("1.1", (), "u"),
    ]
    a, b, text, number = source.take(np.array([5, 0]))
    assert a.tolist() == [True, False]
    assert b.tolist() == [[10.0, 11.0], [0.0, 1.0]]
    assert text.tolist() == ["f", "a"]
    assert text.dtype == object
    assert number.dtype == np.uint8
    assert pickle.loads(pickle.dumps(source)).take(np.array([3]))[1].tolist() == [[6.0, 7.0]]


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.arange(3, dtype=">f4"), np.dtype(np.float32)),
        (np.arange(3, dtype="float16"), np.dtype(np.float16)),
        (np.array([b"a", b"bc", b""]), np.dtype(object)),
        (np.array(["a", b"b", "ü"], object), np.dtype(object)),
        (np.zeros(3, "complex64"), np.dtype(np.complex64)),
    ],
    ids=str,
)
def test_type_of_the_tensor(array: Any, dtype: np.dtype[Any]) -> None:
    source = data.from_arrays(array)
    assert source.fields[0].dtype == dtype
    [found] = source.take(np.arange(3))
    assert found.dtype == dtype
    assert found.tolist() == array.tolist()


def test_pandas_categories_are_text() -> None:
    import pandas as pd

    frame = pd.DataFrame({"kind": pd.Categorical(["r", "g"]), "size": [1.0, 2.0]})
    source = data.from_arrays({name: frame[name] for name in frame}, frame["size"])
    assert source.take(np.array([1, 0]))[0].tolist() == ["g", "r"]


def test_texts_count_for_the_size_of_an_example() -> None:
    contents = np.empty(4, object)
    contents[:] = [b"x" * 10_000] * 4
    assert 10_000 <= data.from_arrays(contents).num_bytes < 10_100


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(3), np.zeros(4), "from_arrays got 3 rows of 0 and 4 of 1; give as many of each"),
        ({"a": 1.0}, None, "for a; give arrays whose rows are examples"),
        (np.zeros((0, 2)), None, "from_arrays got no examples"),
        ({}, None, "from_arrays got no examples"),
        (np.array(["2020-01-01"], "datetime64[s]"), None, r"an array of datetime64\[s\] for 0; give numbers"),
        (np.array(["a", None], object), None, "an array of object for 0"),
        (np.zeros(2, np.longdouble), None, "an array of .* for 0; give numbers"),
        ({"v": [[1], [1, 2]]}, None, "from_arrays got no array for v: .*; give rows of one length"),
    ],
    ids=str,
)
def test_what_is_no_examples_is_a_data_error(x: Any, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.from_arrays(x, y)
