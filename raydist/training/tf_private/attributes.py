"""Gives objects, classes and modules other attributes for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


@contextlib.contextmanager
def changed(owner: Any, **attributes: Any) -> Iterator[None]:
    """Gives an object, a class or a module other attributes inside the block; it has them already."""
    before = {name: getattr(owner, name) for name in attributes}
    for name, value in attributes.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


_ABSENT = object()


@contextlib.contextmanager
def own_attributes(attributes: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Gives instances attributes of their own inside the block, each as its owner, name and value.

    It does so past __setattr__, by which both Kerases track what layers and metrics have.
    """
    given = list(attributes)
    before = [vars(owner).get(name, _ABSENT) for owner, name, _ in given]
    for owner, name, value in given:
        vars(owner)[name] = value
    try:
        yield
    finally:
        for (owner, name, _), value in zip(given, before, strict=True):
            if value is _ABSENT:
                del vars(owner)[name]
            else:
                vars(owner)[name] = value
