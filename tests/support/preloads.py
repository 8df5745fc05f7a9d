"""What fork servers of tests import: badly, in one way or another."""

from __future__ import annotations

import threading


def starts_thread() -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def fails() -> None:
    raise ImportError("no such library")
