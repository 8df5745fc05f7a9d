"""What a task knows of the CPU time of its process and host."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable

from raydist.training.reporting.host_usage import CpuUsage, read_cpu_usage

BURNT_S = 0.3


def burn(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def used(work: Callable[[], object]) -> CpuUsage:
    """Returns what a piece of work has used."""
    before = read_cpu_usage()
    work()
    after = read_cpu_usage()
    assert None not in (before.run_delay_s, before.other_cpu_s, after.run_delay_s, after.other_cpu_s)
    return CpuUsage(
        cpu_s=after.cpu_s - before.cpu_s,
        run_delay_s=(after.run_delay_s or 0.0) - (before.run_delay_s or 0.0),
        other_cpu_s=(after.other_cpu_s or 0.0) - (before.other_cpu_s or 0.0),
        num_cpus=after.num_cpus,
    )


def test_own_cpu_time_is_that_of_all_threads() -> None:
    def work() -> None:
        threads = [threading.Thread(target=burn, args=(0.1,)) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

    assert used(work).cpu_s >= 0.19


def test_another_process_on_the_same_cpu_is_seen() -> None:
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cpus)})  # the child inherits it
    other = multiprocessing.get_context("fork").Process(target=burn, args=(60.0,))
    other.start()
    try:
        usage = used(lambda: burn(BURNT_S))
    finally:
        other.kill()
        other.join()
        os.sched_setaffinity(0, cpus)
    assert usage.run_delay_s is not None
    assert usage.other_cpu_s is not None
    # Both take turns on one CPU, and the time of the other one is not in that of this process.
    assert usage.run_delay_s > BURNT_S / 4
    assert usage.other_cpu_s > BURNT_S / 4
    assert BURNT_S <= usage.cpu_s < BURNT_S + usage.other_cpu_s / 2
