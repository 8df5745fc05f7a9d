"""Replaces private parts of a library, each only where it is the very source that it was written for."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from raydist.errors import UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """One function or method of a library that raydist replaces.

    Attributes:
      owner: The class or module that holds it.
      name: Its name there.
      fingerprint: `fingerprint_of` the source that the replacement was written for.
      make: Makes the new function from the old one.
      reason: What is wrong with the old one, with the upstream issue.
    """

    owner: Any
    name: str
    fingerprint: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]
    reason: str

    @property
    def found(self) -> str:
        return fingerprint_of(inspect.getattr_static(self.owner, self.name))

    def __str__(self) -> str:
        return f"{getattr(self.owner, '__qualname__', self.owner.__name__)}.{self.name}"


def fingerprint_of(function: Any) -> str:
    """Returns a short hash of the function's source."""
    return hashlib.sha256(inspect.getsource(inspect.unwrap(function)).encode()).hexdigest()[:12]


def apply(replacements: Sequence[Replacement], *, library: ModuleType, version: str) -> None:
    """Applies all replacements, or none.

    Args:
      version: `major.minor` that they were written for.

    Raises:
      UnsupportedError: The library has another version, or one of them is not what it was written for.
    """
    name, found_version = library.__name__, library.__version__
    if not found_version.startswith(f"{version}."):
        raise UnsupportedError(
            f"{name} is {found_version}; raydist patches {version}. Install {name}=={version}.*, or go "
            "without with --no-patch-keras"
        )
    changed = [f"{item} ({item.found})" for item in replacements if item.found != item.fingerprint]
    if changed:
        raise UnsupportedError(
            f"{name} {found_version} differs from the version that raydist patches in {', '.join(changed)}; "
            "install the version that raydist's pyproject.toml names, or go without with --no-patch-keras"
        )
    for item in replacements:
        setattr(item.owner, item.name, item.make(getattr(item.owner, item.name)))
