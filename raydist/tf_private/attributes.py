"""Gives objects, classes and modules other attributes, for a while or for good."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def around(owner: Any, *names: str) -> Callable[[Callable[..., Any]], None]:
    """Has the decorated function called in place of attributes of TensorFlow, with the original first.

    Once for each attribute: what an earlier task of this process has put there stays.
    """

    def put(new: Callable[..., Any]) -> None:
        for name in names:
            original = getattr(owner, name)
            # functools.wraps copies it from what is wrapped to what wraps that.
            known: frozenset[str] = getattr(original, "put_around", frozenset())
            if new.__qualname__ not in known:
                function = _calls(new, original)
                function.put_around = known | {new.__qualname__}  # type: ignore[attr-defined]
                setattr(owner, name, function)

    return put


def _calls(new: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return new(original, *args, **kwargs)

    return function


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
                vars(owner).pop(name, None)  # given twice
            else:
                vars(owner)[name] = value


CONTAINERS = (list, dict, set, collections.deque)


def set_content(container: Any, content: Any) -> None:
    """Gives a container another content, also one that Keras or TensorFlow follows by a wrapper."""
    is_followed = hasattr(container, "_update_snapshot")
    wrapped = getattr(container, "_storage", None), getattr(container, "__wrapped__", None)
    for one in wrapped if is_followed else (*wrapped, container):
        kind: Any = next((kind for kind in CONTAINERS if isinstance(one, kind)), None)
        if kind is not None:
            kind.clear(one)
            (kind.extend if hasattr(kind, "extend") else kind.update)(one, content)
    if is_followed:
        container._update_snapshot()
