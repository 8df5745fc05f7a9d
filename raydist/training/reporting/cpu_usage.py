"""Who uses the CPUs of this host: this process, and everything else."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# Of the first line of /proc/stat: user, nice, system, irq, softirq, steal. Time of guests is in the first
# two already.
_BUSY_FIELDS = (0, 1, 2, 5, 6, 7)
_NS_PER_S = 1e9


@dataclass(frozen=True, kw_only=True)
class CpuUsage:
    """Sums in seconds; see `TaskPace`."""

    cpu_s: float
    run_delay_s: float | None
    other_cpu_s: float | None
    num_cpus: int


def read_cpu_usage() -> CpuUsage:
    """Returns what was used so far. Takes about 2 ms in a process of 100 threads."""
    cpu_s = time.process_time()
    host_s = _host_cpu_s()
    return CpuUsage(
        cpu_s=cpu_s,
        run_delay_s=_run_delay_s(),
        other_cpu_s=None if host_s is None else max(0.0, host_s - cpu_s),
        num_cpus=os.cpu_count() or 1,
    )


def _host_cpu_s() -> float | None:
    try:
        with (_PROC / "stat").open() as file:
            fields = file.readline().split()[1:]
        ticks = sum(int(fields[index]) for index in _BUSY_FIELDS)
    except (OSError, IndexError, ValueError):
        return None
    return float(ticks / os.sysconf("SC_CLK_TCK"))


def _run_delay_s() -> float | None:
    """Returns how long this process's threads waited for a CPU; None for a kernel that does not count it."""
    total, num_read = 0, 0
    try:
        threads = os.listdir(_PROC / "self" / "task")
    except OSError:
        return None
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                total += int(file.read().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended meanwhile
        num_read += 1
    return total / _NS_PER_S if num_read else None
