"""The digest of a checkpoint's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raydist.storage.checkpoint_marker import digest_of

ARRAYS = [
    ("model/00000", "dense/kernel", np.arange(6, dtype=np.float32).reshape(2, 3)),
    ("model/00001", "dense/bias", np.zeros((0,), np.float32)),
]


def digest(arrays: list[tuple[str, str, np.ndarray]]) -> str:
    return digest_of(
        ({"key": key, "name": name, "shape": list(array.shape), "dtype": str(array.dtype)}, array.data)
        for key, name, array in arrays
    )


def changed(**facts: Any) -> list[tuple[str, str, np.ndarray]]:
    key, name, array = ARRAYS[0]
    return [(key, facts.get("name", name), facts.get("array", array)), ARRAYS[1]]


def test_digest_of_equal_arrays_is_equal() -> None:
    assert digest(ARRAYS) == digest([(key, name, array.copy()) for key, name, array in ARRAYS])
    assert len(digest(ARRAYS)) == 16
    assert int(digest(ARRAYS), 16) >= 0


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(changed(array=np.nextafter(ARRAYS[0][2], np.float32(9))), id="bytes"),
        pytest.param(changed(array=ARRAYS[0][2].reshape(3, 2)), id="shape"),
        pytest.param(changed(array=ARRAYS[0][2].view(np.int32)), id="type"),
        pytest.param(changed(name="other/kernel"), id="name"),
        pytest.param(ARRAYS[::-1], id="order"),
        pytest.param(ARRAYS[:1], id="number"),
    ],
)
def test_digest_depends_on(other: list[tuple[str, str, np.ndarray]]) -> None:
    assert digest(other) != digest(ARRAYS)
