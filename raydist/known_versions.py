"""The versions of other libraries that raydist was written for; pyproject.toml has them as bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from types import MappingProxyType

NOT_INSTALLED = "none"


@dataclass(frozen=True, kw_only=True)
class KnownVersions:
    """The versions of a library that raydist was written for, `major.minor` each, both included."""

    oldest: str
    newest: str

    @property
    def requirement(self) -> str:
        """What follows the library's name in a requirement of pip."""
        major, minor = version_of(self.newest)
        return f">={self.oldest},<{major}.{minor + 1}"

    def is_newer(self, version: str) -> bool:
        """Whether a version is newer than these."""
        return version_of(version) > version_of(self.newest)

    def is_older(self, version: str) -> bool:
        """Whether a version is older than these."""
        return version_of(version) < version_of(self.oldest)


def version_of(version: str) -> tuple[int, int]:
    """Returns the first two numbers of a version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


# Any one of them provides a library: there are builds of each night, and TensorFlow has some for CPUs alone.
_DISTRIBUTIONS = {
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tf-nightly", "tf-nightly-cpu"),
    "keras": ("keras", "keras-nightly"),
    "tf_keras": ("tf_keras", "tf-keras-nightly"),
}


def installed_version(library: str) -> str:
    """Returns the version of a library, whichever distribution provides it; NOT_INSTALLED without one."""
    for distribution in _DISTRIBUTIONS.get(library, (library,)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return NOT_INSTALLED


KNOWN: Mapping[str, KnownVersions] = MappingProxyType(
    {
        "tensorflow": KnownVersions(oldest="2.18", newest="2.21"),
        "keras": KnownVersions(oldest="3.10", newest="3.15"),
        "tf_keras": KnownVersions(oldest="2.18", newest="2.21"),
        "ray": KnownVersions(oldest="2.46", newest="2.60"),
    }
)
