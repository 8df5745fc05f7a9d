"""The context of the session that is open in this process, for code that Keras calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raydist.training.context import TaskContext

_active: TaskContext | None = None


def get() -> TaskContext | None:
    """Returns the context; None outside of a session."""
    return _active


@contextmanager
def activated(context: TaskContext) -> Iterator[None]:
    """Makes it the active one inside the block."""
    global _active
    outer, _active = _active, context
    try:
        yield
    finally:
        _active = outer


def note(sentence: str) -> None:
    """Adds a sentence to the run's notes, once; does nothing outside of a session."""
    if _active is not None and sentence not in _active.progress.status().notes:
        _active.note(sentence)
