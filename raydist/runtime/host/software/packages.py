"""What is installed: the versions of all packages, and whether what is optional is there."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import sys
from collections.abc import Sequence

# importlib.metadata opens a file for each package: 120 of them took 190 ms, their folders' names 0.5 ms.
_FOLDER = re.compile(r"(?P<name>.+?)-(?P<version>\d[^-]*)(-py[\d.]+)?\.(dist|egg)-info")

# What the agent of Ray that serves its metrics imports, and a plain `ray` does not install.
_METRICS_AGENT = ("aiohttp", "opencensus", "opentelemetry", "prometheus_client")


def has_metrics_agent() -> bool:
    """Returns whether a Ray that is started on this host serves metrics for Prometheus."""
    return all(importlib.util.find_spec(name) is not None for name in _METRICS_AGENT)


def package_versions(path: Sequence[str] | None = None) -> dict[str, str]:
    """Returns `python`, then name to version of each package, names as PyPI compares them (`tf-keras`).

    Args:
      path: Where to look, the first one wins; sys.path when omitted.
    """
    found: dict[str, str] = {}
    for folder in sys.path if path is None else path:
        try:
            entries = os.listdir(folder)
        except OSError:  # a zip, or a folder that is not there
            continue
        for entry in entries:
            match = _FOLDER.fullmatch(entry)
            if match is not None:
                found.setdefault(re.sub(r"[-_.]+", "-", match["name"]).lower(), match["version"])
    return {"python": platform.python_version(), **dict(sorted(found.items()))}
