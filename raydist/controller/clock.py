"""The two times that a controller needs, passed in so that tests need not wait."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Returns seconds that only ever grow, for limits and durations."""

    def unix(self) -> float:
        """Returns Unix time in seconds, which tasks on other hosts use as well."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        return time.monotonic()

    def unix(self) -> float:
        return time.time()
