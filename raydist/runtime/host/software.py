"""What is installed on this host, and which private parts of Ray and TensorFlow raydist does not find in it.

Versions are read without importing anything. Parts of TensorFlow are looked for in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from raydist.known_versions import KNOWN, NOT_INSTALLED, installed_version, version_of

_TIMEOUT_S = 120.0


class FreshProcessError(Exception):
    """The code was not done in time, or failed; the message is a reason without a subject."""


def answer_of(code: str, *, environ: Mapping[str, str | None]) -> Any:
    """Returns what the code printed last, a line of JSON.

    Args:
      environ: What the process has besides this process's environment; None for what it lacks.

    Raises:
      FreshProcessError: There is no answer.
    """
    wanted: dict[str, str | None] = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environ}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={name: text for name, text in wanted.items() if text is not None},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FreshProcessError(f"it took longer than {_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise FreshProcessError((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


_COMPARED = ("raydist", "tensorflow", "keras", "tf_keras")


def installed_versions() -> dict[str, str]:
    """Returns name to version; `none` where it is not installed."""
    versions = {name: installed_version(name) for name in _COMPARED}
    # Ray itself refuses what differs by more than the last part.
    return {**versions, "python": ".".join(platform.python_version_tuple()[:2])}


def describe_difference(
    host: str, theirs: Mapping[str, str], *, references: Mapping[str, Mapping[str, str]]
) -> str | None:
    """Returns a sentence about how a host's versions differ from those of the first that they differ from.

    What a reference lacks is not compared with it: a driver only submits, and needs neither TensorFlow nor
    Keras.

    Args:
      references: By whose they are, such as "the driver" or "host 10.0.0.1", versions.
    """
    for owner, ours in references.items():
        differing = [name for name in ours if theirs.get(name, NOT_INSTALLED) != ours[name] != NOT_INSTALLED]
        if differing:
            there = ", ".join(f"{name} {theirs.get(name, NOT_INSTALLED)}" for name in differing)
            here = ", ".join(f"{name} {ours[name]}" for name in differing)
            return f"host {host} has {there}, but {owner} has {here}; install the same versions on both"
    if theirs.get("tensorflow", NOT_INSTALLED) == NOT_INSTALLED:
        return (
            f"host {host} has no TensorFlow; `pip install 'raydist[tensorflow]'` there adds what tasks need"
        )
    return None


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


# Whose module tells.
_MODULES = {"ray": "raydist.runtime.cluster.ray_internals", "tensorflow": "raydist.tf_private"}
_CODE = "import json; from {module} import missing_parts; print(); print(json.dumps(missing_parts()))"


def lost_parts() -> list[str]:
    """Returns a sentence for each part that is missing. The newest known versions have all, unasked."""
    found = []
    for library, module in _MODULES.items():
        version = installed_version(library)
        if version != NOT_INSTALLED and version_of(version) != version_of(KNOWN[library].newest):
            found += _missing_parts(library, module)
    return found


def _missing_parts(library: str, module: str) -> list[str]:
    try:
        sentences: list[str] = answer_of(_CODE.format(module=module), environ={"CUDA_VISIBLE_DEVICES": "-1"})
    except FreshProcessError as error:
        return [f"{library} cannot be used: {error}"]
    return sentences
