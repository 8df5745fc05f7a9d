"""A train function's value as JSON, and back."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raydist.errors import StorageError
from raydist.outcome.codec import as_plain
from raydist.outcome.value import MAX_BYTES, NotKeptError, decode_value, encode_value
from raydist.spec.secrecy import dump_plain_json
from raydist.storage.run_record import RunRecordStore, decode_record, read_record
from raydist.storage.run_storage import RunStorage, open_run
from tests.support.records import make_record

Pair = namedtuple("Pair", "x y")


@pytest.fixture
def storage(tmp_path: Path) -> RunStorage:
    return open_run(str(tmp_path), run="first")


def encoded(value: Any) -> Any:
    return encode_value(value, hide=lambda text: text.replace("hush", "***"))


def back(value: Any) -> Any:
    """Returns a value as it comes back from run.json."""
    return decode_value(json.loads(dump_plain_json(encoded(value))))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**70),
        0.1,
        math.inf,
        -math.inf,
        "ümlaut\n",
        ".nan",
        [],
        (),
        {},
        [1, [2.5, ("a", None)]],
        {"loss": [0.5, 0.25], "shape": (2, 3)},
        {1: "a", (2, "b"): [3], None: 4, "text": 5, False: 6},
        {"$tuple": [1], "other": {"$x": 2}},
        {"args": [1, [2], None], "command": ("a", 3)},
    ],
    ids=repr,
)
def test_plain_value_comes_back_as_it_was(value: Any) -> None:
    found = back(value)
    assert found == value
    assert type(found) is type(value)
    if isinstance(value, dict):
        assert list(found) == list(value)


def test_common_values_read_as_json_says_them() -> None:
    value = {"accuracy": np.float32(0.75), "history": {"loss": [1.0, 0.5]}, "done": np.bool_(True)}
    assert encoded(value) == {"accuracy": 0.75, "history": {"loss": [1.0, 0.5]}, "done": True}


def test_nan_comes_back() -> None:
    assert math.isnan(back([math.nan])[0])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array([[1, 2], [3, 4]], np.int64).T,
        np.array([1, 256], ">u2"),
        np.array(2.5),
        np.empty((0, 3), np.uint8),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.array([np.nan, np.inf], np.float16),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_array_comes_back_with_its_bits(array: np.ndarray[Any, Any]) -> None:
    found = back((array,))[0]
    assert (found.dtype, found.shape) == (array.dtype.newbyteorder("="), array.shape)
    np.testing.assert_array_equal(found, array)
    found[...] = 0  # it is the caller's own


def test_numbers_of_numpy_become_pythons() -> None:
    found = back([np.int16(-3), np.float64(0.1), np.float32(0.1), np.uint64(2**64 - 1), np.str_("a")])
    assert found == [-3, 0.1, float(np.float32(0.1)), 2**64 - 1, "a"]
    assert [type(one) for one in found] == [int, float, float, int, str]


def test_subclasses_become_what_they_are_kinds_of() -> None:
    found = back([Pair(1, 2), OrderedDict(a=1)])
    assert [type(one) for one in found] == [tuple, dict]


class History:
    history = {"loss": [0.5]}  # noqa: RUF012


class Tensor:
    def __init__(self, array: Any, *, shape: Any = None) -> None:
        self._array = array
        self.shape = array.shape if shape is None else shape

    def numpy(self) -> Any:
        assert self._array is not None, "read from the device"
        return self._array


def test_history_becomes_its_dict_and_a_tensor_its_array() -> None:
    assert back(History()) == {"loss": [0.5]}
    assert back(Tensor(np.float32(0.5))) == 0.5
    np.testing.assert_array_equal(back(Tensor(np.arange(3))), np.arange(3))


def _cycle() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "it is a object"),
        ({"a": [0, {1}]}, "its ['a'][1] is a set"),
        ({"model": Tensor(np.array(["x"], object))}, "its ['model'] is an array of object"),
        (b"bytes", "it is a bytes"),
        (np.complex64(1), "it is a complex64"),
        (np.ma.masked_array([1]), "it is a MaskedArray"),
        (1 << 5000, "it is an int of 5001 bits"),
        ("\ud800", "it is a text with half a character"),
        ({frozenset(): 1}, "its key [frozenset()] is a frozenset"),
        (_cycle(), "it is nested more than 64 deep"),
        (
            np.zeros(MAX_BYTES + 1, np.uint8),
            "it is a ndarray of shape (1048577,), which is larger than 1 MiB",
        ),
        ("a" * (MAX_BYTES + 1), "it is a str, which is larger than 1 MiB"),
        (
            Tensor(None, shape=(1024, 1025)),
            "it is a Tensor of shape (1024, 1025), which is larger than 1 MiB",
        ),
        (
            [np.zeros(MAX_BYTES // 2, np.uint8)] * 2,
            "its [1] is a ndarray of shape (524288,), with which it is larger than 1 MiB",
        ),
        ([1] * MAX_BYTES, "it is a list, which is larger than 1 MiB"),
        ([1.25] * (MAX_BYTES // 4), "] is a float, with which it is larger than 1 MiB"),
    ],
    ids=[*"abcdefghijklmnop"],
)
def test_value_that_cannot_be_kept_says_what_it_is(value: Any, why: str) -> None:
    with pytest.raises(NotKeptError) as raised:
        encoded(value)
    assert why in str(raised.value)


def test_array_of_the_largest_size_is_kept() -> None:
    assert back(np.ones(MAX_BYTES, np.uint8)).sum() == MAX_BYTES


def test_secrets_are_taken_out_however_the_value_is_kept() -> None:
    value = {"note": "hush", "api_key": "a", 1: {"api_key": "b"}, "uri": "s3://me:pw@bucket"}
    found = back({"inner": value, "plain": {"password": ("c",)}})
    assert found == {
        "inner": {"note": "***", "api_key": "***", 1: {"api_key": "***"}, "uri": "s3://***@bucket"},
        "plain": {"password": "***"},
    }
    assert back(found) == found


@pytest.mark.parametrize(
    "kept",
    [
        {"$tuple": 1},
        {"$tuple": [], "more": 1},
        {"$what": []},
        {"$float": "x"},
        {"$float": 1},
        {"$dict": [[1]]},
        {"$dict": [[[], 1]]},
        {"$array": {"dtype": "object", "shape": [1], "base64": ""}},
        {"$array": {"dtype": "uint8", "shape": [2], "base64": "AA=="}},
        {"$array": {"dtype": "uint8", "shape": [1], "base64": "?"}},
        {"$array": {"dtype": "uint8"}},
        {"$array": [1]},
    ],
    ids=json.dumps,
)
def test_damaged_value_is_a_damaged_record(storage: RunStorage, kept: Any) -> None:
    record = {**as_plain(make_record(storage)), "value": [kept]}
    with pytest.raises(StorageError, match=r"is damaged: value is "):
        decode_record(json.dumps(record).encode(), storage)


def test_record_keeps_the_value(storage: RunStorage) -> None:
    value = {"curve": np.arange(3.0), "best": (1, math.inf)}
    RunRecordStore(storage).replace(make_record(storage, value=encoded(value)))
    found = read_record(storage).result().value
    np.testing.assert_array_equal(found["curve"], value["curve"])
    assert found["best"] == value["best"]
