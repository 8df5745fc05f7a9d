"""Closed segments: how events and metrics grow on object stores, which cannot append."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from raydist.errors import StorageError
from raydist.spec.secrecy import dump_plain_json
from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout
from raydist.storage.run_storage import RunStorage

SEGMENT_MAX_AGE_S = 5.0
SEGMENT_MAX_BYTES = 4 * 1024 * 1024

Item = TypeVar("Item")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Written(Generic[Item]):
    seq: int
    items: list[Item]
    num_bytes: int


class SegmentWriter(Generic[Item]):
    """Gathers items and writes them as numbered files, each complete and never written again.

    Starts no thread: whoever owns it calls `tick()` about once a second. Safe to use from several
    threads; `append` never waits for storage.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        segment_key: Callable[[int], str],
        encode: Callable[[Sequence[Item]], bytes],
        item_bytes: Callable[[Item], int],
        first_seq: int,
        joined_at: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes how to name segment number `seq`, how to encode items, and about how large each is.

        Args:
          first_seq: The first number that is free, from `next_seq`.
          joined_at: After how many segments `tick` puts one in their place. A reader may meet an item twice
            then, and a segment that it has listed may be gone. None keeps each segment.
          clock: Seconds, from any start.
        """
        self._storage = storage
        self._hasty_storage = storage.hasty()
        self._segment_key = segment_key
        self._encode = encode
        self._item_bytes = item_bytes
        self._seq = first_seq
        self._joined_at = joined_at
        self._unjoined: list[_Written[Item]] = []
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
        self._join()

    def flush(self, *, is_hasty: bool = False) -> None:
        """Writes what is pending as one segment; what cannot be written stays pending.

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
            with self._pending_lock:
                items = list(self._pending)
            if not items:
                return
            storage.write_bytes(self._segment_key(self._seq), self._encode(items))
            num_bytes = sum(map(self._item_bytes, items))
            if self._joined_at is not None and num_bytes < SEGMENT_MAX_BYTES:
                self._unjoined.append(_Written(self._seq, items, num_bytes))
            self._seq += 1
            with self._pending_lock:
                del self._pending[: len(items)]
                self._pending_bytes -= num_bytes
                self._pending_since_s = self._clock()

    def _join(self) -> None:
        """Puts one segment in the place of many small ones, which take long to read."""
        with self._flush_lock:
            parts = self._unjoined
            is_large = sum(part.num_bytes for part in parts) >= SEGMENT_MAX_BYTES
            if self._joined_at is None or len(parts) < 2 or not (is_large or len(parts) >= self._joined_at):
                return
            self._unjoined = []
            items = [item for part in parts for item in part.items]
            try:
                self._hasty_storage.write_bytes(self._segment_key(self._seq), self._encode(items))
            except StorageError as error:
                logger.warning("small segments stay as they are: %s", error)
                return
            self._seq += 1
        # Last: if this process ends before, each item is still stored at least once.
        self._delete([part.seq for part in parts])

    def _delete(self, numbers: Sequence[int]) -> None:
        try:
            for seq in numbers:
                self._hasty_storage.delete(self._segment_key(seq))
        except StorageError as error:
            logger.warning("segments that were joined stay beside it: %s", error)


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
            event = json.loads(line)
            if not isinstance(event, dict):
                raise ValueError("a line holds no JSON object")
            events.append(event)
        except ValueError as error:
            damage = StorageError(f"{storage.uri(key)} is damaged: {error}")
            if on_damage is None:
                raise damage from error
            on_damage(damage)
    return events
