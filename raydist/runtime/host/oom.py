"""How many processes the kernel's OOM killer has killed, as far as a process may see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
# Counts those of the whole host, other containers' too, so it is asked last.
_HOST = Path("/proc/vmstat")
_NAME = "oom_kill "
_UNLIMITED = 1 << 60  # cgroup v1 writes a number for it


@dataclass(frozen=True, kw_only=True)
class OomCounter:
    """The counter of one process's cgroup, or of its host, and what it said once.

    Attributes:
      path: The file that has it, for every process of the host.
    """

    path: Path
    before: int

    @classmethod
    def read(cls) -> OomCounter | None:
        """Returns the counter for this process as it is now; None where the kernel shows none."""
        for path in (*_own_counters(), _HOST):
            count = _count(path)
            if count is not None:
                return cls(path=path, before=count)
        return None

    def limit_bytes(self) -> int | None:
        """Returns the memory limit of the cgroup; None where there is none, or the counter is the host's."""
        limits = {"memory.events": "memory.max", "memory.oom_control": "memory.limit_in_bytes"}
        if self.path.name not in limits:
            return None
        try:
            limit = int((self.path.parent / limits[self.path.name]).read_text())
        except (OSError, ValueError):  # `max` is none
            return None
        return limit if limit < _UNLIMITED else None

    def num_killed(self) -> int | None:
        """Returns how many were killed since; None where that can no longer be read."""
        count = _count(self.path)
        return None if count is None else count - self.before


def _own_counters() -> list[Path]:
    """Returns where cgroup v2 and v1 count for the cgroup of this process."""
    try:
        lines = _OWN_CGROUPS.read_text().splitlines()
    except OSError:
        return []
    paths = []
    for number, controllers, cgroup in (line.split(":", 2) for line in lines):
        if number == "0":
            paths.append(_CGROUPS / cgroup.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            paths.append(_CGROUPS / "memory" / cgroup.lstrip("/") / "memory.oom_control")
    return paths


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.removeprefix(_NAME)) for line in lines if line.startswith(_NAME)), None)
