"""What a training reports of its pace: the waits of its steps, who uses the host's CPUs, and its links."""

from __future__ import annotations

import time

from raydist.spec.status import TaskPace
from raydist.training.cluster import collective_clock
from raydist.training.input import input_clock
from raydist.training.input.input_clock import InputReport
from raydist.training.reporting.host_usage import TaskLinks, read_cpu_usage
from raydist.training.reporting.reporter import Reporter

# A file of each thread and the state of each connection are read for it.
PACE_INTERVAL_S = 2.0


class PaceReport:
    """What one training reports of the time of its steps."""

    def __init__(self) -> None:
        self._input = InputReport()
        self._waited: tuple[float, float] | None = None  # until when, and how long
        self._reported_at_s = float("-inf")

    def update(self, reporter: Reporter, *, step: int) -> dict[str, float]:
        """Returns this task's values since the last call, and reports its sums to the controller every 2 s.

        Called at a step's end. What the first steps take is not counted: tracing, and filling the buffers.
        """
        values, waited_s, now_s = self._input.update(), collective_clock.waited_s(), time.monotonic()
        if waited_s is not None:
            last, self._waited = self._waited, (now_s, waited_s)
            if last is not None and now_s > last[0]:
                values["collective_wait"] = min(1.0, (waited_s - last[1]) / (now_s - last[0]))
        if now_s - self._reported_at_s >= PACE_INTERVAL_S:
            self._reported_at_s = now_s
            pace = _pace(step, at_s=now_s, collective_wait_s=waited_s, links=reporter.links)
            reporter.progress.paced(pace)
        return values

    def finish(self, reporter: Reporter) -> None:
        """Prints a line on the input, and notes an advice where the training waited too long for it."""
        self._input.finish(reporter)


def _pace(step: int, *, at_s: float, collective_wait_s: float | None, links: TaskLinks) -> TaskPace:
    read, usage = input_clock.read(), read_cpu_usage()
    return TaskPace(
        at_s=at_s,
        steps=step,
        input_wait_s=None if read is None else read.waited_s,
        collective_wait_s=collective_wait_s,
        cpu_s=usage.cpu_s,
        run_delay_s=usage.run_delay_s,
        other_cpu_s=usage.other_cpu_s,
        num_cpus=usage.num_cpus,
        host=links.host,
        links=links.read(),
    )
