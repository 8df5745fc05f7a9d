"""RunStorage: a run's folder on storage."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from raydist.errors import StorageError
from raydist.outcome.result import command_for
from raydist.storage.filesystem import FoundFile, Storage
from raydist.storage.layout import RunLayout
from raydist.storage.limits import safe_name

_THREADS = 8


class RunStorage(Storage, RunLayout):
    """A storage, and the path names that one run has in it."""

    def __init__(self, storage: Storage, *, run: str) -> None:
        Storage.__init__(self, **storage.arguments)
        RunLayout.__init__(self, run=run)

    def command(self, command: str) -> str:
        """Returns `raydist stop first --storage runs`: how a command is given this run."""
        return command_for(self.uri(self.run), command)

    def upload_folder(self, directory: Path, key: str) -> list[Path]:
        """Copies the files below a local folder to below `key`, one after the other; returns them."""
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        for path in files:
            self.upload(path, f"{key}/{path.relative_to(directory).as_posix()}")
        return files

    def download_folder(
        self, key: str, directory: Path, *, is_wanted: Callable[[str], bool] = lambda name: True
    ) -> list[FoundFile]:
        """Copies the files below `key` into a local folder; returns them, none where it is missing.

        Args:
          is_wanted: Chooses by the names below `key`.
        """
        names = {file: file.key.removeprefix(f"{key}/") for file in self.list_files(key)}
        files = [file for file in names if is_wanted(names[file])]
        try:
            targets = [directory / safe_name(names[file]) for file in files]
        except ValueError as error:
            raise StorageError(f"{self.uri(key)} is damaged: {error}") from error
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="raydist-download") as threads:
            for _ in threads.map(lambda file, target: self.download(file.key, target), files, targets):
                pass
        return files


def open_run(uri: str, *, run: str) -> RunStorage:
    """Opens the storage at a URI as `Storage.open` does, for the run of that name."""
    return RunStorage(Storage.open(uri), run=run)
