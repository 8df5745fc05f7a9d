"""DataFiles: the files of a source, which must not change while they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isal import isal_zlib

from raydist.errors import DataError, StorageError
from raydist.storage.filesystem import FoundFile, Storage


class DataFiles:
    """Files below some URIs, numbered in the order of the URIs and of the names below each.

    Holds no connection, so that it can be sent to another process.
    """

    def __init__(
        self, uris: str | Sequence[str], *, what: str, is_wanted: Callable[[str], bool] = lambda key: True
    ) -> None:
        """Looks for the files.

        Args:
          uris: Files and folders, as paths or URIs.
          what: The function that was called, for messages.
          is_wanted: Whether a file of a folder, by its key below it, is one of the data.

        Raises:
          DataError: There are none, or a URI cannot be listed.
        """
        self._uris = [uris] if isinstance(uris, str) else list(uris)
        self._files: list[tuple[int, FoundFile]] = []
        self._storages: dict[int, Storage] = {}
        for number, uri in enumerate(self._uris):
            found = _listed(self._storage(number), what)
            wanted = [file for file in found if not file.key or is_wanted(file.key)]
            if not wanted:
                raise DataError(f"{what} found no files at {uri}; give a file, or a folder that holds some")
            self._files += [(number, file) for file in wanted]
        if not self._files:
            raise DataError(f"{what} got no URI; give a file, or a folder that holds some")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_storages": {}}

    def __len__(self) -> int:
        return len(self._files)

    def key(self, number: int) -> str:
        """Returns a file's name below its URI; "" for a URI that is a file."""
        return self._files[number][1].key

    def size(self, number: int) -> int:
        """Returns the size in bytes."""
        return self._files[number][1].size_bytes

    def version(self, number: int) -> tuple[int, int | None]:
        """Returns what changes with the content: size, and time of change in nanoseconds since 1970."""
        return self.size(number), self._files[number][1].modified_ns

    def fingerprint(self) -> int:
        """Returns a number for the names and sizes of all files, below 2**32."""
        told = "\n".join(f"{self.key(number)} {self.size(number)}" for number in range(len(self)))
        return int(isal_zlib.crc32(told.encode()))

    def uri(self, number: int) -> str:
        storage, file = self._files[number]
        return self._storage(storage).uri(file.key)

    def open(self, number: int) -> Any:
        """Opens a file for random access (a `pyarrow.NativeFile`).

        Raises:
          DataError: It is gone, or has changed since it was found.
        """
        self.check(number)
        storage, file = self._files[number]
        try:
            return self._storage(storage).open_input(file.key)
        except StorageError as error:
            raise DataError(f"the input {error}") from error

    def check(self, number: int) -> None:
        """Raises DataError where a file is gone, or has changed since it was found."""
        storage, file = self._files[number]
        try:
            now = self._storage(storage).look_at(file.key)
        except StorageError as error:
            raise DataError(f"the input {error}") from error
        if now is None:
            raise DataError(
                f"input file {self.uri(number)} is gone since the run began; put it back, and resume"
            )
        if now != file:
            raise DataError(
                f"input file {self.uri(number)} has changed since it was opened: it had {file.size_bytes} "
                f"bytes, now {now.size_bytes}; the order of examples holds only for data that stay the same"
            )

    def _storage(self, number: int) -> Storage:
        if number not in self._storages:
            self._storages[number] = Storage.open(self._uris[number])
        return self._storages[number]


def _listed(storage: Storage, what: str) -> list[FoundFile]:
    try:
        return storage.find_files()
    except StorageError as error:
        raise DataError(f"{what} {error}") from error
