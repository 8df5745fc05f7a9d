"""What a host knows of a task's process that died without an error: how it ended, and its last lines.

The kernel's OOM killer is found by its counter, as far as a process may see it.
"""

from __future__ import annotations

import contextlib
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from raydist.runtime.host.hardware import text_of
from raydist.runtime.host.scratch import spool_path
from raydist.spec.quantities import write_bytes
from raydist.spec.text import as_submitted, without_sequences

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
    paths = []
    for line in text_of(_OWN_CGROUPS).splitlines():
        number, controllers, cgroup = line.split(":", 2)
        if number == "0":
            paths.append(_CGROUPS / cgroup.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            paths.append(_CGROUPS / "memory" / cgroup.lstrip("/") / "memory.oom_control")
    return paths


def _count(path: Path) -> int | None:
    lines = text_of(path).splitlines()
    return next((int(line.removeprefix(_NAME)) for line in lines if line.startswith(_NAME)), None)


def describe_exit(code: int) -> str:
    """Returns `was killed by SIGSEGV` or `ended with exit code 7`."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = f"signal {-code}"
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        name = signal.Signals(-code).name
    return f"was killed by {name}"


MAX_LINES = 20
# More than what Ray and faulthandler print when a process crashes.
_TAIL_BYTES = 128 << 10
_LINES_BEFORE_CRASH = 6

# Python's faulthandler, which a task's process has enabled.
_FAULT_LINE = re.compile(
    r"Fatal Python error: (Segmentation fault|Aborted|Bus error|Floating point exception|Illegal instruction)"
)
MORE_MEMORY = "(take smaller batches, fewer tasks per host or hosts with more memory)"
# The native stack, twice, the names of all extension modules, and TensorFlow's INFO lines: in the log only.
_NOISE = re.compile(r"logging\.cc:\d+: |^ *@ +0x[0-9a-f]+ |^PC: @|^Extension modules: |^I\d{4} \d\d:\d\d:")


@dataclass(frozen=True, kw_only=True)
class PostMortem:
    """What is known of a death.

    Attributes:
      how: `was killed by SIGSEGV`, the end of a sentence.
      log_end: The last lines of the task's log; empty where it printed nothing.
      is_out_of_memory: Whether the kernel's OOM killer did it.
    """

    how: str
    log_end: str = ""
    is_out_of_memory: bool = False


def examine(scratch_path: Path, *, code: int, oom: OomCounter | None) -> PostMortem:
    """Looks at what a dead process of this host has left; needs its scratch folder.

    Args:
      code: Its exit code, or minus the signal that killed it.
      oom: The OOM killer's counter when the process started; None where there is none.
    """
    lines = log_end(scratch_path, is_crash=code < 0 and code != -signal.SIGKILL)
    num_oom_kills = None if oom is None or code != -signal.SIGKILL else oom.num_killed()
    how = describe_exit(code)
    if oom is not None and num_oom_kills:
        limit = oom.limit_bytes()
        where = "host or container" if limit is None else f"container, {write_bytes(limit)},"
        how += f", by the kernel's OOM killer: the memory of its {where} ran out {MORE_MEMORY}"
    elif num_oom_kills is not None:
        how += ", not by the kernel's OOM killer"
    return PostMortem(how=how, log_end=lines, is_out_of_memory=bool(num_oom_kills))


def log_end(scratch_path: Path, *, is_crash: bool = False) -> str:
    """Returns what leads to a crash and the first lines of its stack; without one just the last lines."""
    text = _tail(spool_path(scratch_path))
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not _NOISE.search(line)]
    crashes = [index for index, line in enumerate(lines) if is_crash and _FAULT_LINE.search(line)]
    first = crashes[-1] - _LINES_BEFORE_CRASH if crashes else len(lines) - MAX_LINES
    return "\n".join(lines[max(0, first) :][:MAX_LINES])


def _tail(spool: Path) -> str:
    try:
        with spool.open("rb") as log:
            log.seek(0, 2)
            log.seek(max(0, log.tell() - _TAIL_BYTES))
            return as_submitted(without_sequences(log.read().decode(errors="replace")))
    except OSError:
        return ""
