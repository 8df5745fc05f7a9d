"""What the tasks of an attempt find out about their input once for all of them, not each for itself.

A directory of 100,000 files is listed by one task, and read by all in the same order, even if
files are added to it in the meantime. Work that takes a request for each file is divided among the tasks. The
first one to come begins, as no task knows whether others ask for the same.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol, TypeVar

from raydist.errors import DataError, StorageError

# Items of a part, at least, and parts, at most: enough for any number of tasks.
_PART_ITEMS, _MAX_PARTS = 64, 64

Result = TypeVar("Result")


class Parcels(Protocol):
    """Bytes that one task of an attempt leaves for the others; no other process can write them."""

    def put(self, key: str, content: bytes) -> None:
        """Leaves `content` under a key, without waiting for a reader."""

    def get(self, key: str) -> bytes:
        """Returns what a task has left, or leaves soon; raises ClusterError if the run is gone."""

    def claim(self, key: str) -> int:
        """Returns how many tasks have called this for the key before."""


class _Current:
    parcels: Parcels | None = None
    num_asked: ClassVar[Counter[str]] = Counter()


def set_parcels(parcels: Parcels | None) -> None:
    """Has this process share with its peers, all of which run the same program; None ends that."""
    _Current.parcels = parcels
    _Current.num_asked.clear()


def divided(
    what: str, num_items: int, find: Callable[[range], Sequence[Result]], *, part_items: int = _PART_ITEMS
) -> list[Result]:
    """Returns what `find` returns for each of some items, which the peers that ask for the same divide.

    Args:
      what: Equal in all tasks for the same request; it may hold secrets.
      find: Returns something that can be pickled for each item of a range, which may be a part of all.
      part_items: Of a part, at least.

    Raises:
      DataError, StorageError: What `find` raised, in whichever task. Of other errors the task that had them
        raises its own, and its peers a DataError that names it.
    """
    parcels = _Current.parcels
    if parcels is None or not num_items:
        return list(find(range(num_items)))
    # A second request of a task looks it up again: all tasks ask in the same order.
    key = f"input-{hashlib.sha256(what.encode()).hexdigest()}-{_Current.num_asked[what]}"
    _Current.num_asked[what] += 1
    size = max(part_items, -(-num_items // _MAX_PARTS))
    firsts = range(0, num_items, size)
    own: dict[int, bytes] = {}
    unknown: Exception | None = None
    while (number := parcels.claim(key)) < len(firsts):
        first = firsts[number]
        own[number], failed = _tried(find, range(first, min(num_items, first + size)))
        unknown = unknown or failed
        if 0 not in own:
            parcels.put(f"{key}-{number}", own.pop(number))
    if 0 in own:  # the task with part 0 collects all parts
        parts = [
            own[number] if number in own else parcels.get(f"{key}-{number}") for number in range(len(firsts))
        ]
        parcels.put(key, pickle.dumps(parts, protocol=5))
    else:
        parts = pickle.loads(parcels.get(key))
    if unknown is not None:
        raise unknown
    found: list[Result] = []
    for part in parts:
        results, error = pickle.loads(part)
        if error is not None:
            raise error
        found += results
    return found


def _tried(find: Callable[[range], Sequence[Result]], items: range) -> tuple[bytes, Exception | None]:
    """Returns what peers are told of a part, and the error if it is none that they can raise as it is."""
    try:
        return pickle.dumps((list(find(items)), None), protocol=5), None
    except (DataError, StorageError) as error:
        return pickle.dumps((None, error), protocol=5), None
    except Exception as error:
        told = DataError(
            f"another task could not look at its part of the input: {type(error).__name__}: {error}"
        )
        return pickle.dumps((None, told), protocol=5), error
