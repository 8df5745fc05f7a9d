"""RayGauges: gauges on the metrics endpoint that Ray has on each host, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class RayGauges:
    """Sets gauges of this process, which has to be one of a Ray cluster, not a client of `ray://`.

    Ray collects the values every 10 s, prefixes each name with `ray_`, and drops a gauge that was not set for
    two of these intervals. It never drops a counter, so runs that have ended would add up: there are none.
    """

    def __init__(self) -> None:
        self._gauges: dict[str, Any] = {}

    def declare(self, name: str, summary: str, *, labels: Sequence[str]) -> None:
        """Makes a gauge known; each value of it has all `labels`."""
        from ray.util.metrics import Gauge

        self._gauges[name] = Gauge(name, summary, tag_keys=tuple(labels))

    def set(self, name: str, value: float, *, labels: Mapping[str, str]) -> None:
        self._gauges[name].set(float(value), tags=dict(labels))
