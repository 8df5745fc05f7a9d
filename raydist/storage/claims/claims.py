"""ClaimStore: the numbered claims of a run, of which the highest one says who drives it."""

from __future__ import annotations

from raydist.errors import StorageError
from raydist.storage.claims.claim import Claim, is_driven
from raydist.storage.claims.exclusive import create_once
from raydist.storage.run_record import RunRecord
from raydist.storage.run_storage import RunStorage


class ClaimStore:
    """Adds claims, each number once. None is changed afterwards, and each is deleted by its holder alone.

    So a claim is taken over by the claim of the next number. Of several processes that found the same dead
    holder exactly one creates it.
    """

    def __init__(self, storage: RunStorage) -> None:
        self._storage = storage

    def newest(self) -> Claim | None:
        """Returns the claim with the highest number; None where there is none.

        Raises:
          StorageError: It cannot be read, or is no claim.
        """
        while True:
            number = self._newest_number()
            if number is None:
                return None
            try:
                return self._read(number)
            except StorageError:
                if self._storage.exists(self._storage.claim(number)):
                    raise
                # Its holder has just given it up.

    def is_driven(self, record: RunRecord | None, *, now_s: float) -> bool:
        """Whether somebody drives the run, or is about to; raises like `newest`.

        Args:
          record: run.json; None where there is none, or it is damaged.
          now_s: Unix time.
        """
        if record is not None and record.state.is_terminal and record.claim is None:
            return False  # a run of a raydist that made no claims
        return is_driven(self.newest(), record, now_s=now_s)

    def add(self, claim: Claim) -> bool:
        """Stores the claim; returns False where another process was quicker."""
        if not create_once(self._storage, self._storage.claim(claim.number), claim.dump().encode()):
            return False
        if self._newest_number() == claim.number:
            return True
        # The number had been given up, and the next one was taken meanwhile.
        self.remove(claim.number)
        return False

    def remove(self, number: int) -> None:
        """Gives a claim up, with the folders that were made for it."""
        self._storage.delete(self._storage.claim(number))
        for folder in (self._storage.claims, self._storage.run):
            self._storage.remove_empty_folder(folder)

    def _newest_number(self) -> int | None:
        names = self._storage.list_names(self._storage.claims)
        numbers = [number for name in names if (number := self._storage.parse_claim(name)) is not None]
        return max(numbers, default=None)

    def _read(self, number: int) -> Claim:
        key = self._storage.claim(number)
        try:
            return Claim.parse(self._storage.read_text(key), number=number)
        except ValueError as error:
            raise StorageError(
                f"{self._storage.uri(key)} is damaged: {error}; it says which process drives run "
                f"{self._storage.run}: if none does, delete that file"
            ) from error
