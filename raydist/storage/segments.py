"""Segments: how events and metrics grow on object stores, which cannot append, in few files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from raydist.errors import StorageError
from raydist.spec.secrecy import dump_plain_json
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout
from raydist.storage.limits import parse_json
from raydist.storage.run_storage import RunStorage

SEGMENT_MAX_AGE_S = 5.0
SEGMENT_MAX_BYTES = 4 * 1024 * 1024
# A smaller segment is written again, with what is new: a run has few files, and each write is short.
SEGMENT_GROWS_TO_BYTES = 256 * 1024

Item = TypeVar("Item")


class SegmentWriter(Generic[Item]):
    """Gathers items and writes them as numbered files, the last of which grows.

    Each file is whole at any time. Starts no thread: whoever owns it calls `tick()` about once a second.
    Safe to use from several threads; `append` never waits for storage.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        segment_key: Callable[[int], str],
        encode: Callable[[Sequence[Item]], bytes],
        item_bytes: Callable[[Item], int],
        first_seq: int,
        grows_to_bytes: int = SEGMENT_GROWS_TO_BYTES,
        is_appended: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes how to name segment number `seq`, how to encode items, and about how large each is.

        Args:
          first_seq: The first number that is free, from `next_seq`.
          grows_to_bytes: The size at which the next segment begins.
          is_appended: Whether a file grows in its place where storage can do that, as a reader that keeps it
            open needs. What `encode` returns can then be joined.
          clock: Seconds, from any start.
        """
        self._storage = storage
        self._hasty_storage = storage.hasty()
        self._segment_key = segment_key
        self._encode = encode
        self._item_bytes = item_bytes
        self._seq = first_seq
        self._grows_to_bytes = grows_to_bytes
        self._is_appended = is_appended
        self._growing: list[Item] = []  # what the last segment has
        self._clock = clock
        self._pending: list[Item] = []
        self._pending_bytes = 0
        self._pending_since_s = 0.0
        self._pending_lock = threading.Lock()
        self._flush_lock = threading.Lock()

    def append(self, *items: Item) -> None:
        with self._pending_lock:
            if not self._pending:
                self._pending_since_s = self._clock()
            self._pending.extend(items)
            self._pending_bytes += sum(map(self._item_bytes, items))

    def tick(self) -> None:
        """Writes a segment once what is pending is 5 s old or 4 MB large."""
        with self._pending_lock:
            age_s = self._clock() - self._pending_since_s
            is_due = age_s >= SEGMENT_MAX_AGE_S or self._pending_bytes >= SEGMENT_MAX_BYTES
        if is_due:
            self._write(self._hasty_storage)  # the next tick tries again

    def flush(self, *, is_hasty: bool = False) -> None:
        """Writes what is pending; what cannot be written stays pending.

        Args:
          is_hasty: Whether a storage that fails is tried once only, because something else is waited for.
        """
        self._write(self._hasty_storage if is_hasty else self._storage)

    def waiting(self) -> list[Item]:
        """Returns what is pending; what is just being written is among it."""
        with self._pending_lock:
            return list(self._pending)

    def _write(self, storage: Storage) -> None:
        with self._flush_lock:
            left = len(self.waiting())
            while left > 0:
                left -= self._write_some(storage)

    def _write_some(self, storage: Storage) -> int:
        """Writes the oldest items into a segment, as many as readers take in one; returns their number."""
        items: list[Item] = []
        num_bytes = 0
        for item in self.waiting():  # after an outage of the storage it may be a lot
            num_bytes += self._item_bytes(item)
            if items and num_bytes > SEGMENT_MAX_BYTES:
                break
            items.append(item)
        key, growing = self._segment_key(self._seq), [*self._growing, *items]
        if not (self._is_appended and storage.append(key, self._encode(items))):
            storage.write_bytes(key, self._encode(growing))
        if sum(map(self._item_bytes, growing)) < self._grows_to_bytes:
            self._growing = growing
        else:
            self._growing = []
            self._seq += 1
        with self._pending_lock:
            del self._pending[: len(items)]
            self._pending_bytes -= sum(map(self._item_bytes, items))
            self._pending_since_s = self._clock()
        return len(items)


class EventWriter:
    """Writes what happens to a run as JSON lines; used by the run's controller alone."""

    def __init__(self, segments: SegmentWriter[bytes]) -> None:
        self._segments = segments

    @classmethod
    def open(cls, storage: RunStorage, *, clock: Callable[[], float] = time.monotonic) -> EventWriter:
        """Continues after the segments that the run has already."""
        return cls(
            SegmentWriter(
                storage,
                segment_key=storage.event_segment,
                encode=b"".join,
                item_bytes=len,
                first_seq=next_seq(storage, storage.events),
                clock=clock,
            )
        )

    def append(self, record: Mapping[str, Any]) -> None:
        """Takes one event as it is now; secrets in it are not stored."""
        self._segments.append(dump_plain_json(record).encode() + b"\n")

    def tick(self) -> None:
        self._segments.tick()

    def flush(self) -> None:
        self._segments.flush()


def read_events(
    storage: RunStorage, *, on_damage: Callable[[StorageError], object] | None = None
) -> list[dict[str, Any]]:
    """Returns the events of all segments in the order they were appended; none for a missing run.

    Args:
      on_damage: Takes the error of each damaged segment, whose other lines are returned; None raises it.
    """
    return [
        event
        for seq in segment_numbers(storage, storage.events)
        for event in _parse_lines(storage, storage.event_segment(seq), on_damage)
    ]


def segment_numbers(storage: Storage, folder_key: str, *, prefix: str = "") -> list[int]:
    """Returns the numbers of the segments in a folder whose names begin with `prefix`, ascending."""
    numbers = (RunLayout.parse_seq(name, prefix=prefix) for name in storage.list_names(folder_key))
    return sorted(number for number in numbers if number is not None)


def next_seq(storage: Storage, folder_key: str, *, prefix: str = "") -> int:
    """Returns the number of the segment to write next."""
    return max(segment_numbers(storage, folder_key, prefix=prefix), default=-1) + 1


def _parse_lines(
    storage: Storage, key: str, on_damage: Callable[[StorageError], object] | None
) -> list[dict[str, Any]]:
    events = []
    for line in storage.read_bytes(key).splitlines():
        try:
            event = parse_json(line)
            if not isinstance(event, dict):
                raise ValueError("a line holds no JSON object")
            events.append(event)
        except ValueError as error:
            damage = StorageError(f"{storage.uri(key)} is damaged: {error}")
            if on_damage is None:
                raise damage from error
            on_damage(damage)
    return events
