"""Keeps the gauges of a run up to date, for Prometheus."""

from __future__ import annotations

from typing import Protocol

from raydist.controller.gauges import GAUGES, samples
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import Clock
from raydist.outcome.status import RunState

# Ray takes the values less often.
PUBLISH_EVERY_S = 5.0


class GaugeSink(Protocol):
    """Where gauges go, as in raydist.runtime.cluster.ray_gauges."""

    def declare(self, name: str, summary: str, *, labels: tuple[str, ...]) -> None: ...

    def set(self, name: str, value: float, *, labels: dict[str, str]) -> None: ...


class RunGauges:
    """Publishes the gauges of one run, in the process that drives it, so that steps cost no more."""

    def __init__(self, machine: RunMachine, sink: GaugeSink, *, clock: Clock) -> None:
        self._machine = machine
        self._sink = sink
        self._clock = clock
        self._published_s: float | None = None
        self._state: RunState | None = None
        self._checkpoint = machine.reached.checkpoint
        self._checkpoint_at_s: float | None = None
        for gauge in GAUGES:
            sink.declare(gauge.name, gauge.summary, labels=gauge.labels)

    def publish(self) -> None:
        """Publishes the gauges as they are now, at a change of state and every 5 s."""
        if self._machine.reached.checkpoint != self._checkpoint:
            self._checkpoint, self._checkpoint_at_s = self._machine.reached.checkpoint, self._clock.unix()
        now_s, state = self._clock.now(), self._machine.state
        is_due = self._published_s is None or now_s - self._published_s >= PUBLISH_EVERY_S
        if state is self._state and not is_due:
            return
        self._published_s, self._state = now_s, state
        for sample in samples(self._machine, checkpoint_at_s=self._checkpoint_at_s):
            self._sink.set(sample.gauge, sample.value, labels=dict(sample.labels))
