"""Which process drives a run: numbered claims in the run's folder, of which the highest one counts.

A claim names its process by host, pid and start time, so that `raydist stop` reaches that process only. The
file of a claim is created exactly once, also on storage that has no operation for it.
"""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from raydist.errors import StorageError
from raydist.outcome.result import MAX_PID
from raydist.spec.secrecy import dump_plain_json
from raydist.storage.limits import MAX_TIME_S, parse_json
from raydist.storage.run_record import RunRecord
from raydist.storage.run_storage import RunStorage


def this_process() -> dict[str, str | int | None]:
    """Returns host, pid and when the process was started, which tells it from a later one with its pid."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "start": _start_of(os.getpid()),
        "pid_space": _pid_space(),
    }


def is_this_host(process: Mapping[str, Any]) -> bool:
    """Whether the pid of that process means the same here: containers can share a host name, but not pids."""
    space = process.get("pid_space")
    return bool(process["host"] == socket.gethostname() and space in (None, _pid_space()))


def is_alive(process: Mapping[str, Any]) -> bool:
    """Whether that process of this host still lives."""
    try:
        os.kill(int(process["pid"]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return bool(process["start"] == _start_of(int(process["pid"])))


def _pid_space() -> str | None:
    """Returns the boot of this host and its pid namespace; None where there is no /proc to tell them."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return None


def _start_of(pid: int) -> int | None:
    """Returns the start in clock ticks since the host's boot; None where there is no /proc to tell it."""
    try:
        # The name, in brackets, may hold spaces: proc(5).
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


# A controller that lives replaces run.json every second, that of a large run every third one.
LIVES_WITHIN_S = 10.0
# From the claim to the first run.json: starts or joins a Ray, asks it what it has, packs the code.
BEGINS_WITHIN_S = 300.0


# The claims of this process by their ids. Its pid alone would not tell that a run of it has ended.
_held_here: set[str] = set()


def hold(id_: str) -> None:
    _held_here.add(id_)


def let_go(id_: str) -> None:
    _held_here.discard(id_)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One submit or resume of a run.

    Attributes:
      number: How many claims of the run there were before it. The highest one says who drives the run.
      id: Marks the submit or resume, also after Ray has brought back a detached run's controller.
      holder: The process, as raydist.storage.claims describes it; with `actor` and `address` for a
        controller in a Ray.
      at_s: Unix time.
      damage: Why the file cannot be read, and what helps; None for a whole one. Then only `number` is known.
    """

    number: int
    id: str
    holder: Mapping[str, Any]
    at_s: float
    damage: str | None = None

    @classmethod
    def parse(cls, text: str, *, number: int) -> Claim:
        """Raises ValueError where `text` is not a claim."""
        match parse_json(text):
            case {
                "id": str(id_),
                "holder": {"host": str(), "pid": int(pid)} as holder,
                "at_s": int() | float() as at_s,
            }:
                if 0 < pid < MAX_PID and 0 <= at_s <= MAX_TIME_S:
                    return cls(number=number, id=id_, holder={"start": None, **holder}, at_s=at_s)
        raise ValueError("it names no process")

    def dump(self) -> str:
        return dump_plain_json({"id": self.id, "holder": self.holder, "at_s": self.at_s}, indent=1)

    @property
    def is_detached(self) -> bool:
        return "actor" in self.holder

    @property
    def who(self) -> str:
        """For messages: the process, its host, and since when."""
        where = f", in the Ray at {self.holder.get('address')}," if self.is_detached else ""
        since = describe_time(self.at_s)
        return f"process {self.holder['pid']} of host {self.holder['host']}{where} since {since}"


def is_driven(claim: Claim | None, record: RunRecord | None, *, now_s: float) -> bool:
    """Whether somebody drives the run, or is about to.

    A process of this host is looked for. Of one elsewhere, and of a controller that Ray may bring back,
    run.json tells, and before there is one of this claim the time of the claim.

    Args:
      claim: The run's newest; None for a run of a raydist that made none. Of a damaged one, the driver in
        run.json is looked for.
      record: run.json; None where there is none.
      now_s: Unix time.

    Raises:
      StorageError: The claim is damaged, and run.json does not say who made it.
    """
    if claim is not None and record is not None and number_of(record) > claim.number:
        claim = None  # that of the record was given up
    begun = record if record is not None and is_of(claim, record) else None
    if begun is not None and begun.state.is_terminal:
        return False
    if claim is not None and claim.damage is not None:
        if begun is None or begun.driver is None:
            raise StorageError(claim.damage)
        claim = replace(claim, holder=begun.driver)
    if claim is not None and not claim.is_detached and is_this_host(claim.holder):
        is_here = claim.holder["pid"] == os.getpid()
        return is_alive(claim.holder) and (not is_here or claim.id in _held_here)
    if begun is not None:
        return now_s - (begun.updated_at_s or 0.0) < LIVES_WITHIN_S
    return claim is not None and now_s - claim.at_s < BEGINS_WITHIN_S


def is_of(claim: Claim | None, record: RunRecord) -> bool:
    """Whether the holder of the claim has written the record, and not the holder of an earlier one."""
    return claim is None or number_of(record) == claim.number


def number_of(record: RunRecord) -> int:
    """Returns the number of the claim that a record was written under; -1 for one of an older raydist."""
    return -1 if record.claim is None else record.claim


def describe_time(at_s: float) -> str:
    """Returns a Unix time as people write it, in this host's time zone."""
    return datetime.fromtimestamp(at_s).astimezone().isoformat(sep=" ", timespec="seconds")


# More than a process that lives needs from its first write to its last: a round, and a write with retries.
_EXPIRES_S = 60.0
_ROUND_S = 20.0
_PAUSE_S = 0.2
# Of its own: the global generator is the user's, who seeds it.
_random = random.Random()


def create_once(storage: RunStorage, key: str, data: bytes) -> bool:
    """Creates `key`, whole, unless it exists; of several callers on any hosts exactly one gets True."""
    is_created = storage.create(key, data)
    if is_created is not None:
        return is_created
    return Contest(storage=storage).create(key, data)


@dataclass(kw_only=True)
class Contest:
    """One caller's part in settling who creates a file of a run.

    Attributes:
      first_seen_s: When a file of another caller was found first, by its name.
    """

    storage: RunStorage
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    first_seen_s: dict[str, float] = field(default_factory=dict)

    def create(self, key: str, data: bytes) -> bool:
        while True:
            if self.storage.exists(key):
                return False
            is_created = self._try_once(key, data, name=uuid.uuid4().hex)
            if is_created is not None:
                return is_created
            self.sleep(_PAUSE_S * (1 + _random.random()))

    def _try_once(self, key: str, data: bytes, *, name: str) -> bool | None:
        """Takes part under that name; returns None where another caller goes first."""
        deadline_s = self.clock() + _ROUND_S
        self.storage.write_bytes(self.storage.contender(name), b"")
        try:
            if any(rival < name for rival in self._rivals()):
                return None
            while any(rival > name for rival in self._rivals()):
                if self.clock() >= deadline_s:
                    return None
                self.sleep(_PAUSE_S)
            if self.storage.exists(key):
                return False
            if self.clock() >= deadline_s:  # the others may have taken this process for dead
                return None
            self.storage.write_bytes(key, data)
            return True
        finally:
            self.storage.delete(self.storage.contender(name))

    def _rivals(self) -> list[str]:
        """Returns the names in the folder; deletes those that dead processes have left."""
        now_s = self.clock()
        names = self.storage.list_names(self.storage.contenders)
        expired = [name for name in names if now_s - self.first_seen_s.setdefault(name, now_s) >= _EXPIRES_S]
        for name in expired:
            self.storage.delete(self.storage.contender(name))
        return [name for name in names if name not in expired]


class ClaimStore:
    """Adds claims, each number once. None is changed afterwards, and each is deleted by its holder alone.

    So a claim is taken over by the claim of the next number. Of several processes that found the same dead
    holder exactly one creates it.
    """

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage

    def newest(self) -> Claim | None:
        """Returns the claim with the highest number; None where there is none.

        Raises:
          StorageError: It cannot be read.
        """
        while True:
            number = self._newest_number()
            if number is None:
                return None
            try:
                return self._read(number)
            except StorageError:
                if self._storage.exists(self._storage.claim(number)):
                    raise
                # Its holder has just given it up.

    def is_driven(self, record: RunRecord | None, *, now_s: float) -> bool:
        """Whether somebody drives the run, or is about to; raises like `newest`.

        Args:
          record: run.json; None where there is none, or it is damaged.
          now_s: Unix time.
        """
        if record is not None and record.state.is_terminal and record.claim is None:
            return False  # a run of a raydist that made no claims
        return is_driven(self.newest(), record, now_s=now_s)

    def add(self, claim: Claim) -> bool:
        """Stores the claim; returns False where another process was quicker."""
        if not create_once(self._storage, self._storage.claim(claim.number), claim.dump().encode()):
            return False
        if self._newest_number() == claim.number:
            return True
        # The number had been given up, and the next one was taken since.
        self.remove(claim.number)
        return False

    def remove(self, number: int) -> None:
        """Gives a claim up, with the folders that were made for it."""
        self._storage.delete(self._storage.claim(number))
        for folder in (self._storage.claims, self._storage.run):
            self._storage.remove_empty_folder(folder)

    def _newest_number(self) -> int | None:
        names = self._storage.list_names(self._storage.claims)
        numbers = [number for name in names if (number := self._storage.parse_claim(name)) is not None]
        return max(numbers, default=None)

    def _read(self, number: int) -> Claim:
        key = self._storage.claim(number)
        try:
            return Claim.parse(self._storage.read_text(key), number=number)
        except ValueError as error:
            damage = (
                f"{self._storage.uri(key)} is damaged: {error}; it says which process drives run "
                f"{self._storage.run}: if none does, delete that file"
            )
            return Claim(number=number, id="", holder={}, at_s=0.0, damage=damage)
