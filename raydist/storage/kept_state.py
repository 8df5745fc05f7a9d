"""KeptState: a task's newest state in memory of its host, which outlives the process that has written it.

Two memory files take turns, so that one is whole whenever the process dies. The agent of the task makes them,
and has them until its own end. If that comes with its controller's death, the host's fork server has them for
a minute more, for the agent of the next attempt. As checkpoints in memory of GEMINI (Wang et al., SOSP 2023),
on one host.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from isal import isal_zlib

_MAGIC = b"rdstate1"
_FIELDS = struct.Struct("<8sqQQ")  # magic, step, bytes of the index and of all that follows the header
_CHECKSUM = struct.Struct("<I")  # of those fields, and of all that follows
_HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_NUM_SLOTS = 2


@dataclass(frozen=True, kw_only=True)
class KeptState:
    """What was kept after a step.

    Attributes:
      files: As a checkpoint has them.
      waiting: What was reported and waits to be stored, by what it is.
    """

    step: int
    files: Mapping[str, bytes] = field(repr=False)
    waiting: Mapping[str, bytes] = field(repr=False)


class StateMemory:
    """The memory files, in the process that owns them."""

    def __init__(self, name: str = "raydist-state", *, fds: Sequence[int] = ()) -> None:
        """Makes the files, which /proc shows by that name, or takes open ones."""
        self._fds = [*fds] or [os.memfd_create(name, os.MFD_CLOEXEC) for _ in range(_NUM_SLOTS)]

    @property
    def paths(self) -> tuple[str, ...]:
        """Where another process of this user can open them while this one lives."""
        return tuple(f"/proc/{os.getpid()}/fd/{fd}" for fd in self._fds)

    def newest(self) -> bytes | None:
        """Returns the content of the newest whole one, for `unpack`; None if there is none."""
        found = [content for content in map(_content, self._fds) if unpack(content) is not None]
        return max(found, key=_step_of, default=None)

    def close(self) -> None:
        """Gives the memory back, whoever else has the files open. Idempotent."""
        while self._fds:
            os.ftruncate(self._fds[-1], 0)
            os.close(self._fds.pop())


class StateWriter:
    """Writes into the memory of another process."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Opens it; raises OSError where that cannot be done."""
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(Path(path).open("r+b", buffering=0)) for path in paths]
            self._fds = [os.dup(file.fileno()) for file in files]
        self._next = 0

    def write(self, step: int, files: Mapping[str, bytes], waiting: Mapping[str, bytes]) -> None:
        """Writes a state in the place of the one before the last."""
        fd = self._fds[self._next]
        self._next = (self._next + 1) % len(self._fds)
        sizes = [
            {name: memoryview(content).nbytes for name, content in part.items()} for part in (files, waiting)
        ]
        index = json.dumps(sizes).encode()
        parts = [index, *files.values(), *waiting.values()]
        num_bytes = sum(memoryview(part).nbytes for part in parts)
        fields = _FIELDS.pack(_MAGIC, step, len(index), num_bytes)
        os.pwrite(fd, b"\0" * _HEADER_BYTES, 0)
        os.ftruncate(fd, _HEADER_BYTES + num_bytes)
        place, checksum = _HEADER_BYTES, isal_zlib.crc32(fields)
        for part in parts:
            view = memoryview(part).cast("B")
            checksum = isal_zlib.crc32(view, checksum)
            while view:
                num_written = os.pwrite(fd, view, place)
                place, view = place + num_written, view[num_written:]
        os.pwrite(fd, fields + _CHECKSUM.pack(checksum), 0)


def unpack(content: bytes) -> KeptState | None:
    """Returns the state that `StateMemory.newest` has found; None for what is not whole."""
    if len(content) < _HEADER_BYTES:
        return None
    magic, step, index_bytes, num_bytes = _FIELDS.unpack_from(content)
    [checksum] = _CHECKSUM.unpack_from(content, _FIELDS.size)
    body = memoryview(content)[_HEADER_BYTES:]
    if magic != _MAGIC or len(body) != num_bytes:
        return None
    if isal_zlib.crc32(body, isal_zlib.crc32(content[: _FIELDS.size])) != checksum:
        return None
    place = index_bytes
    parts: list[dict[str, bytes]] = []
    for sizes in json.loads(bytes(body[:index_bytes])):
        part = {}
        for name, size in sizes.items():
            part[name] = bytes(body[place : place + size])
            place += size
        parts.append(part)
    return KeptState(step=step, files=parts[0], waiting=parts[1])


def _content(fd: int) -> bytes:
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _step_of(content: bytes) -> int:
    return int(_FIELDS.unpack_from(content)[1])


@dataclass(frozen=True, kw_only=True)
class HandedState:
    """What a task's process gets of states in memory.

    Attributes:
      memory: Where it may keep its own, see `StateMemory.paths`.
      restored: The file with what the chief of the attempt before has kept; None if there is none.
    """

    memory: tuple[str, ...]
    restored: Path | None = None

    def read(self) -> KeptState | None:
        """Returns what the chief of the attempt before has kept, if it is whole."""
        if self.restored is None:
            return None
        content = self.restored.read_bytes()
        self.restored.unlink()
        return unpack(content)
