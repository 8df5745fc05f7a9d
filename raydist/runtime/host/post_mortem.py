"""What a host knows of a task's process that died without an error: how it ended, and its last lines."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import Path

from raydist.runtime.host.oom import OomCounter
from raydist.runtime.host.scratch import spool_path
from raydist.runtime.host.wait_status import describe_exit
from raydist.spec.quantities import write_bytes
from raydist.spec.text import as_submitted, without_sequences

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
class Finding:
    """What is known of a death.

    Attributes:
      how: `was killed by SIGSEGV`, the end of a sentence.
      log_end: The last lines of the task's log; empty where it printed nothing.
      is_out_of_memory: Whether the kernel's OOM killer did it.
    """

    how: str
    log_end: str = ""
    is_out_of_memory: bool = False


def examine(scratch_path: Path, *, code: int, oom: OomCounter | None) -> Finding:
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
    return Finding(how=how, log_end=lines, is_out_of_memory=bool(num_oom_kills))


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
