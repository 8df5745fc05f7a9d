"""StorageProof: how each host shows that it sees the storage that the run's driver writes to."""

from __future__ import annotations

import dataclasses
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydist.errors import StorageError
from raydist.storage.layout import RunLayout

if TYPE_CHECKING:
    from raydist.storage.filesystem import Storage

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
      is_first: Whether no attempt has begun yet. Then a host that cannot reach the store says so soon;
        later on, an outage such as one that ended the attempt before is waited for.
    """

    storage_uri: str
    run: str
    token: str
    is_first: bool = True

    @classmethod
    def leave(cls, *, storage_uri: str, run: str, is_first: bool = True) -> StorageProof:
        """Writes a new token, in the place of an earlier attempt's."""
        proof = cls(storage_uri=storage_uri, run=run, token=secrets.token_hex(16), is_first=is_first)
        proof._open().write_text(proof._key, proof.token)
        return proof

    def check(self, *, host: str) -> None:
        """Raises StorageError, which names this host, where it does not see the token."""
        found = self._read(host)
        if found != self.token:
            what = "is missing there" if found is None else "has another token there: it is another folder"
            raise StorageError(
                f"host {host} does not see the storage that the driver writes to: "
                f"{self._open().uri(self._key)} {what}; {_REMEDY}"
            )

    def check_unchanged(self, *, host: str) -> None:
        """Raises StorageError if the token, which was there when the attempt started, is not there any more.

        Then the folder is another one, such as an empty mount point, and what is written to it is lost.
        """
        proof = dataclasses.replace(self, is_first=False)
        found = proof._read(host)
        if found != self.token:
            what = "is missing" if found is None else "has another token"
            raise StorageError(
                "the run's storage was lost or replaced during the run: "
                f"{proof._open().uri(self._key)} {what} on host {host}; make the storage available, and "
                "continue with --resume from its last checkpoint"
            )

    def _read(self, host: str) -> str | None:
        try:
            return self._open().read_text(self._key)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise StorageError(f"host {host} cannot use the run's storage: {error}") from error

    def _open(self) -> Storage:
        # Imports pyarrow, which unpickling a proof on another host should not.
        from raydist.storage.filesystem import Storage

        storage = Storage.open(self.storage_uri)
        return storage if self.is_first else storage.patient()

    @property
    def _key(self) -> str:
        return RunLayout(run=self.run).token
