"""Ray's metrics endpoint, as Prometheus reads it."""

from __future__ import annotations

import re
import urllib.request

_LINE = re.compile(r"(ray_raydist_\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Endpoint:
    """The endpoint of one host."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def scrape(self, run: str) -> dict[tuple[str, ...], float]:
        """Returns the gauges of a run as they are now: by name, and by what tells their series apart."""
        with urllib.request.urlopen(self._url, timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        found = {}
        for match in filter(None, map(_LINE.fullmatch, lines)):
            labels = dict(_LABEL.findall(match[2]))
            if labels["run"] == run:
                own = (labels[one] for one in ("task", "name", "state") if one in labels)
                found[(match[1], *own)] = float(match[3])
        return found
