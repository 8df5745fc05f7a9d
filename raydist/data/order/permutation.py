"""A seeded permutation of `range(size)` that is asked for single positions, in no memory.

A Feistel network over Z_a x Z_b with a * b just above `size`, and cycle-walking for what falls outside
(Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). NumPy does not promise that its
own permutations stay the same from version to version, and they take memory for every element.
"""

from __future__ import annotations

import math

import numpy as np

# Of what `permuted` returns: another one makes another order, with which no run is to continue.
VERSION = 2

_ROUNDS = 6
# Up to here a network has few permutations to choose from, of three elements but the rotations.
_SORTED_SIZE = 64
_CHUNK = 1 << 14
_MASK = (1 << 64) - 1


def permuted(positions: np.ndarray, size: int, key: int) -> np.ndarray:
    """Returns, for each position, which element of `range(size)` comes there.

    Args:
      positions: int64 `[n]`, each in `range(size)`.
      key: Chooses the permutation; any int.

    Returns:
      int64 `[n]`.
    """
    keys = _round_keys(key)
    if size <= _SORTED_SIZE:
        hashes = _mixed(_mixed(np.arange(size, dtype=np.uint64), keys[0]), keys[1])
        order: np.ndarray = np.argsort(hashes, kind="stable")
        return np.asarray(order[positions], np.int64)
    network = _Network(size, keys, num_values=len(positions))
    found = np.empty(positions.shape, np.int64)
    for first in range(0, len(positions), _CHUNK):  # what is in between stays in the cache
        values = network.once(positions[first : first + _CHUNK].astype(np.uint64))
        while (outside := values >= size).any():
            values[outside] = network.once(values[outside])
        found[first : first + _CHUNK] = values
    return found


def key_of(*parts: int) -> int:
    """Returns a key made of several numbers of 64 bits, such as a seed and an epoch."""
    key = 0
    for part in parts:
        key = _mix(key ^ (part & _MASK))
    return key


class _Network:
    """A Feistel network over Z_rows x Z_columns."""

    def __init__(self, size: int, keys: list[int], *, num_values: int) -> None:
        """Takes what is permuted, and how many values will be asked for, which decides what is quicker."""
        self._columns = math.isqrt(size)
        self._rows = -(-size // self._columns)
        self._keys = keys
        # A round hashes one of about sqrt(size) numbers: it is quicker to look hashes up than to compute
        # one for every value.
        self._tables: list[np.ndarray] | None = None
        if num_values > self._rows:
            numbers = np.arange(self._rows, dtype=np.uint64)
            self._tables = [self._hashed(number, numbers) for number in range(len(keys))]

    def once(self, values: np.ndarray) -> np.ndarray:
        left = values // np.uint64(self._columns)  # in Z_rows; NumPy's divmod takes many times as long
        right = values - left * np.uint64(self._columns)  # in Z_columns
        for number in range(len(self._keys)):
            if number % 2:
                right = _sum(right, self._hashes(number, left), self._columns)
            else:
                left = _sum(left, self._hashes(number, right), self._rows)
        return np.asarray(left * np.uint64(self._columns) + right)

    def _hashes(self, number: int, values: np.ndarray) -> np.ndarray:
        if self._tables is None:
            return self._hashed(number, values)
        return np.asarray(self._tables[number].take(values.view(np.int64)))

    def _hashed(self, number: int, values: np.ndarray) -> np.ndarray:
        """Returns what a round adds: hashes in Z_columns of numbers in Z_rows, or the other way round."""
        return _hash(values, self._keys[number], self._columns if number % 2 else self._rows)


def _sum(values: np.ndarray, others: np.ndarray, size: int) -> np.ndarray:
    """Returns sums in Z_size, without a division, which is slow."""
    sums = values + others
    # What is less than `size` wraps around to a number beyond all sums.
    reduced: np.ndarray = np.minimum(sums, sums - np.uint64(size))
    return reduced


def _hash(values: np.ndarray, key: int, size: int) -> np.ndarray:
    """Returns hashes in Z_size, for a size below 2**32, without a division (Lemire, TOMACS 2019)."""
    hashes: np.ndarray = ((_mixed(values, key) >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)
    return hashes


def _mixed(values: np.ndarray, key: int) -> np.ndarray:
    """SplitMix64's finalizer (Steele et al., OOPSLA 2014)."""
    hashed = values + np.uint64(key)
    hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = hashed ^ (hashed >> np.uint64(31))
    return mixed


def _round_keys(key: int) -> list[int]:
    # Below 2**63, so that adding a value does not overflow NumPy's scalars.
    return [_mix(key + number * 0x9E3779B97F4A7C15) >> 1 for number in range(1, _ROUNDS + 1)]


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
