"""RunStorage: a run's folder on storage."""

from __future__ import annotations

from raydist.storage.filesystem import Storage
from raydist.storage.layout import RunLayout


class RunStorage(Storage, RunLayout):
    """A storage, and the path names that one run has in it."""

    def __init__(self, storage: Storage, *, run: str) -> None:
        Storage.__init__(self, **storage.arguments)
        RunLayout.__init__(self, run=run)


def open_run(uri: str, *, run: str) -> RunStorage:
    """Opens the storage at a URI as `Storage.open` does, for the run of that name."""
    return RunStorage(Storage.open(uri), run=run)
