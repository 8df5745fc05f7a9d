"""A seeded permutation of `range(size)` that is asked for single positions, in no memory.

A Feistel network over Z_a x Z_b with a * b just above `size`, and cycle-walking for what falls outside
(Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002). NumPy does not promise that its
own permutations stay the same from version to version, and they take memory for every element.
"""

from __future__ import annotations

import math

import numpy as np

# Of what `permuted` returns: another one makes another order, with which no run is to go on.
VERSION = 2

_ROUNDS = 6
# Up to here a network has few permutations to choose from, of three elements but the rotations.
_SORTED_SIZE = 64
_CHUNK = 1 << 13
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
    columns = math.isqrt(size)
    rows = -(-size // columns)
    found = np.empty(positions.shape, np.int64)
    for first in range(0, len(positions), _CHUNK):  # what is in between stays in the cache
        values = _once(positions[first : first + _CHUNK].astype(np.uint64), rows, columns, keys)
        while (outside := values >= size).any():
            values[outside] = _once(values[outside], rows, columns, keys)
        found[first : first + _CHUNK] = values
    return found


def key_of(*parts: int) -> int:
    """Returns a key made of several numbers of 64 bits, such as a seed and an epoch."""
    key = 0
    for part in parts:
        key = _mix(key ^ (part & _MASK))
    return key


def _once(values: np.ndarray, rows: int, columns: int, keys: list[int]) -> np.ndarray:
    left, right = np.divmod(values, np.uint64(columns))  # in Z_rows and Z_columns
    for number, key in enumerate(keys):
        if number % 2:
            right = _sum(right, _hash(left, key, columns), columns)
        else:
            left = _sum(left, _hash(right, key, rows), rows)
    return left * np.uint64(columns) + right


def _sum(values: np.ndarray, others: np.ndarray, size: int) -> np.ndarray:
    """Returns sums in Z_size, without a division, which is slow."""
    sums = values + others
    # What is less than `size` wraps around to a number beyond all sums.
    reduced: np.ndarray = np.minimum(sums, sums - np.uint64(size))
    return reduced


def _hash(values: np.ndarray, key: int, size: int) -> np.ndarray:
    """Returns hashes in Z_size, for a size below 2**32, without a division (Lemire, TOMACS 2019)."""
    return ((_mixed(values, key) >> np.uint64(32)) * np.uint64(size)) >> np.uint64(32)


def _mixed(values: np.ndarray, key: int) -> np.ndarray:
    """SplitMix64's finalizer (Steele et al., OOPSLA 2014)."""
    hashed = values + np.uint64(key)
    hashed = (hashed ^ (hashed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashed = (hashed ^ (hashed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashed ^ (hashed >> np.uint64(31))


def _round_keys(key: int) -> list[int]:
    # Below 2**63, so that adding a value does not overflow NumPy's scalars.
    return [_mix(key + number * 0x9E3779B97F4A7C15) >> 1 for number in range(1, _ROUNDS + 1)]


def _mix(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
