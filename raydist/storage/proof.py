"""StorageProof: how each host shows that it sees the storage that the run's driver writes to."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from raydist.errors import StorageError
from raydist.storage.layout import RunLayout

_REMEDY = (
    "choose a --storage that every host reaches under the same name: s3://, gs://, hdfs://, "
    "or a folder of a network file system"
)


@dataclass(frozen=True, kw_only=True)
class StorageProof:
    """A token that the driver has left in the run's folder: who reads it there sees the same storage.

    Attributes:
      storage_uri: The storage that holds the runs, as the user gave it but absolute.
      run: The run's name.
    """

    storage_uri: str
    run: str
    token: str

    @classmethod
    def leave(cls, *, storage_uri: str, run: str) -> StorageProof:
        """Writes a new token, in the place of an earlier attempt's."""
        # Imports pyarrow, which unpickling a proof on another host should not.
        from raydist.storage.filesystem import Storage

        token = secrets.token_hex(16)
        Storage.open(storage_uri).write_text(RunLayout(run=run).token, token)
        return cls(storage_uri=storage_uri, run=run, token=token)

    def check(self, *, host: str) -> None:
        """Raises StorageError, which names this host, where it does not see the token."""
        found = self._read(host)
        if found != self.token:
            what = "is missing there" if found is None else "has another token there: it is another folder"
            raise StorageError(
                f"host {host} does not see the storage that the driver writes to: "
                f"{self._uri} {what}; {_REMEDY}"
            )

    def _read(self, host: str) -> str | None:
        from raydist.storage.filesystem import Storage

        try:
            return Storage.open(self.storage_uri).read_text(RunLayout(run=self.run).token)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise StorageError(f"host {host} cannot use the run's storage: {error}") from error

    @property
    def _uri(self) -> str:
        from raydist.storage.filesystem import Storage

        return Storage.open(self.storage_uri).uri(RunLayout(run=self.run).token)
