"""The .npz file that is laid out in memory before its arrays are known."""

from __future__ import annotations

import io
import os
import threading

import numpy as np
import pytest

from raydist.training.checkpointing.npz import NpzArrays, NpzBuffer

ARRAYS = {
    "model/00000": np.arange(12, dtype=np.float32).reshape(3, 4),
    "model/00001": np.float64(0.5).reshape(()),
    "optimizer/00000": np.zeros((0, 3), np.int64),
    "optimizer/00001": np.array([True, False]),
}


def buffer_of(arrays: dict[str, np.ndarray]) -> NpzBuffer:
    return NpzBuffer({name: (array.shape, array.dtype) for name, array in arrays.items()})


def read(content: memoryview) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:  # checks each entry's CRC
        return dict(arrays)


def test_numpy_reads_what_was_filled_in() -> None:
    buffer = buffer_of(ARRAYS)
    for name, array in ARRAYS.items():
        buffer.fill(name, [array])
    found = read(buffer.seal())
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)


def test_arrays_are_read_back_aligned_and_writable() -> None:
    buffer = buffer_of(ARRAYS)
    for name, array in ARRAYS.items():
        buffer.fill(name, [array])
    found = NpzArrays(bytes(buffer.seal()))
    for name, array in ARRAYS.items():
        own = found[name]
        assert (own.dtype, own.shape, own.flags.aligned) == (array.dtype, array.shape, True)
        np.testing.assert_array_equal(own, array)


def test_file_of_numpy_is_read_and_what_raydist_never_writes_is_refused() -> None:
    file = io.BytesIO()
    np.savez(file, x=np.asfortranarray(ARRAYS["model/00000"]), objects=np.array([{}], object))
    found = NpzArrays(file.getvalue())
    np.testing.assert_array_equal(found["x"], ARRAYS["model/00000"])
    with pytest.raises(ValueError, match="objects has pickled objects"):
        found["objects"]
    with pytest.raises(KeyError):
        found["y"]
    np.savez_compressed(file := io.BytesIO(), x=np.zeros(9))
    with pytest.raises(ValueError, match="x is compressed"):
        NpzArrays(file.getvalue())["x"]
    with pytest.raises(ValueError, match=r"not an \.npz file"):
        NpzArrays(b"nothing")


def test_shards_are_joined_along_the_first_axis() -> None:
    whole = np.arange(20.0).reshape(5, 4)
    buffer = buffer_of({"x": whole})
    buffer.fill("x", [whole[:2], whole[2:]])
    np.testing.assert_array_equal(read(buffer.seal())["x"], whole)


def test_memory_serves_the_next_file() -> None:
    buffer = buffer_of({"x": np.zeros(1000)})
    for value in (1.0, 2.0):
        buffer.fill("x", [np.full(1000, value)])
        np.testing.assert_array_equal(read(buffer.seal())["x"], np.full(1000, value))


def test_what_is_filled_in_is_a_copy() -> None:
    array = np.ones(3)
    buffer = buffer_of({"x": array})
    buffer.fill("x", [array])
    array[:] = 7
    np.testing.assert_array_equal(read(buffer.seal())["x"], np.ones(3))


def test_large_values_are_copied_at_once_and_small_ones_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from raydist.training.checkpointing import variables

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(variables, "_LARGE_BYTES", 800)
    values = {f"{size}-{number}": np.arange(size) for size in (10, 100) for number in range(4)}
    buffer, both = buffer_of(values), threading.Barrier(2)

    class Met:
        def fill(self, name: str, parts: list[np.ndarray]) -> None:
            if parts[0].nbytes >= 800:
                both.wait(timeout=60)
            buffer.fill(name, parts)

    variables._fill(Met(), ((name, [array]) for name, array in values.items()))  # type: ignore[arg-type]
    found = read(buffer.seal())
    assert all(np.array_equal(found[name], array) for name, array in values.items())
