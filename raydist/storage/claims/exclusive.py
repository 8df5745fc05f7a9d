"""Creates a file exactly once, also on storage that has no operation for it.

On a file system a hard link does it. Elsewhere the callers agree among themselves, by the one-bit algorithm
for mutual exclusion (Burns; Lamport). Each writes a file of its own into one folder, lists the folder, and
withdraws if another one has a lower name. Then it waits until no higher name is left. Now it is alone: it
looks for the file and creates it. This needs one property, which S3, GCS and HDFS have: a listing shows
each file whose writing ended before the listing began.

However slow the callers are, no two create the file, with one exception. What a process that died in here
has left in the folder would block the others for ever, so it is deleted once another one has seen it for
`_EXPIRES_S`. A process that was stopped for so long just before its last write, and then goes on, overwrites
what another one has created.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from raydist.storage.run_storage import RunStorage

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
