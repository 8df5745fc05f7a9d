"""Versions of what has to be the same on each host, read without importing any of it."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

_NONE = "none"
# Any one of a list may provide the module: TensorFlow has a CPU-only distribution.
_DISTRIBUTIONS = {
    "raydist": ("raydist",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "keras": ("keras",),
    "tf_keras": ("tf_keras", "tf-keras-nightly"),
}


def installed_versions() -> dict[str, str]:
    """Returns name to version; `none` where it is not installed."""
    versions = {name: _version(distributions) for name, distributions in _DISTRIBUTIONS.items()}
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
        differing = [name for name in ours if theirs.get(name, _NONE) != ours[name] != _NONE]
        if differing:
            there = ", ".join(f"{name} {theirs.get(name, _NONE)}" for name in differing)
            here = ", ".join(f"{name} {ours[name]}" for name in differing)
            return f"host {host} has {there}, but {owner} has {here}; install the same versions on both"
    if theirs.get("tensorflow", _NONE) == _NONE:
        return (
            f"host {host} has no TensorFlow; `pip install 'raydist[tensorflow]'` there adds what tasks need"
        )
    return None


def _version(distributions: tuple[str, ...]) -> str:
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return _NONE
