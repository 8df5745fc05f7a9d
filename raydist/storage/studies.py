"""The studies of a storage: what a search was asked for, and what compared runs have shown."""

from __future__ import annotations

import contextlib
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from raydist.errors import MistakeError, SpecError, StorageError
from raydist.spec.best import Direction
from raydist.spec.secrecy import dump_plain_json
from raydist.storage.claims import Claim, ClaimStore, hold, let_go, this_process
from raydist.storage.filesystem import Storage
from raydist.storage.layout import STUDIES
from raydist.storage.limits import MAX_TIME_S, parse_json
from raydist.storage.run_storage import RunStorage

_RECORD = "study.json"
_COMPARISON = "comparison.json"
_VALUES = "values.json"


class StudyStore:
    """Reads and writes study.json, values.json and comparison.json in `.studies/NAME/`.

    Attributes:
      folder: Where the folders of all studies are, as a key.
    """

    folder = STUDIES

    def __init__(self, storage: Storage, *, clock: Callable[[], float] = time.time) -> None:
        self._storage = storage
        self._clock = clock

    def begin(self, name: str, settings: Mapping[str, Any]) -> None:
        """Notes what a new study is.

        Raises:
          SpecError: There is a study of that name.
          StorageError: Storage cannot be written.
        """
        self._storage.check_writable()
        if self._storage.exists(self._key(name)):
            raise SpecError(
                f"study is {name!r}, which {self._storage.uri()} has already; choose another --study, or "
                "continue that one with --resume"
            )
        record = {"study": name, "created_at_s": self._clock(), "settings": dict(settings)}
        self._storage.write_text(self._key(name), dump_plain_json(record, indent=1))

    def find(self, settings: Mapping[str, Any], *, name: str | None) -> str:
        """Returns the study to continue: that of the name, or the newest one with the same settings.

        Raises:
          MistakeError: There is none, or the one of that name was begun with other settings.
          StorageError: Storage cannot be read, or a record is damaged.
        """
        if name is not None:
            self._check_same(name, settings)
            return name
        found = [
            (record["created_at_s"], one)
            for one in self._storage.list_names(STUDIES)
            if self._storage.exists(self._key(one))
            and (record := self._read(one))["settings"] == _plain(settings)
        ]
        if not found:
            raise MistakeError(
                f"no study in {self._storage.uri()} was begun with this command; name it with --study, or "
                "leave --resume out to begin one"
            )
        return max(found)[1]

    def compared_by(self, name: str) -> tuple[str, Direction] | None:
        """Returns the metric of a search, and which of its values are better.

        None for runs that share the study's name without a search, and for a search that compares nothing.

        Raises:
          StorageError: Storage cannot be read, or the record is damaged.
        """
        if not self._storage.exists(self._key(name)):
            return None
        settings = self._read(name)["settings"]
        metric, mode = settings.get("--metric"), settings.get("--mode")
        is_known = isinstance(metric, str) and mode in [one.value for one in Direction]
        return (metric, Direction(mode)) if is_known else None

    def keep_comparison(self, name: str, comparison: Mapping[str, Any]) -> None:
        """Stores what `compare` has found of the runs of a study, as plain data.

        Raises StorageError where storage cannot be written.
        """
        self._storage.write_text(f"{STUDIES}/{name}/{_COMPARISON}", dump_plain_json(dict(comparison)))

    def comparison(self, name: str) -> dict[str, Any] | None:
        """Returns what is stored of a comparison; None for a study that has none.

        Raises StorageError where it is damaged, or storage cannot be read.
        """
        return self._mapping(name, _COMPARISON)

    def keep_values(self, name: str, values: Mapping[str, float]) -> None:
        """Stores the best value of the metric of each run of a search that has one."""
        self._storage.write_text(f"{STUDIES}/{name}/{_VALUES}", dump_plain_json(dict(values)))

    def values(self, name: str) -> dict[str, float]:
        """Returns what `keep_values` has stored; raises StorageError like `comparison`."""
        return {
            run: float(value)
            for run, value in (self._mapping(name, _VALUES) or {}).items()
            if isinstance(value, int | float) and abs(value) <= sys.float_info.max
        }

    @contextlib.contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Makes this process, inside the block, the only one of this host that searches the study.

        A process of another host is seen in its first minutes only, as it does not renew its claim. After
        them the claims of its trials' runs are in the way.

        Raises:
          SpecError: Another one does, or did until a moment ago.
          StorageError: Storage cannot be read or written.
        """
        claims = ClaimStore(RunStorage(self._storage, run=f"{STUDIES}/{name}"))
        newest = claims.newest()
        number = 0 if newest is None else newest.number + 1
        mine = Claim(number=number, id=uuid.uuid4().hex, holder=this_process(), at_s=self._clock())
        is_taken = claims.is_driven(None, now_s=self._clock())
        if is_taken or not claims.add(mine):
            who = "another process" if newest is None else newest.who
            raise SpecError(
                f"study {name!r} is searched by {who}; wait for its end, or stop it with Ctrl-C there"
            )
        hold(mine.id)
        try:
            yield
        finally:
            let_go(mine.id)
            with contextlib.suppress(StorageError):  # whose process will be seen to have ended
                claims.remove(mine.number)

    def _mapping(self, name: str, file: str) -> dict[str, Any] | None:
        key = f"{STUDIES}/{name}/{file}"
        if not self._storage.exists(key):
            return None
        try:
            return dict(parse_json(self._storage.read_text(key)))
        except (ValueError, TypeError) as error:
            raise StorageError(f"{self._storage.uri(key)} is damaged: {error}") from error

    def _check_same(self, name: str, settings: Mapping[str, Any]) -> None:
        if not self._storage.exists(self._key(name)):
            known = ", ".join(self._storage.list_names(STUDIES)) or "there is none"
            raise MistakeError(
                f"no study named {name!r} in {self._storage.uri()} ({known}); leave --resume out to begin it"
            )
        before, now = self._read(name)["settings"], _plain(settings)
        for key in (key for key in {**before, **now} if before.get(key) != now.get(key)):
            raise MistakeError(
                f"study {name} was begun with {key} {before.get(key)!r}, and is to continue with "
                f"{now.get(key)!r}; give the command that began it, with --resume"
            )

    def _read(self, name: str) -> dict[str, Any]:
        try:
            record: dict[str, Any] = parse_json(self._storage.read_text(self._key(name)))
            if not isinstance(record["settings"], dict) or not 0 <= record["created_at_s"] <= MAX_TIME_S:
                raise ValueError("it names no settings, or no time")
        except (ValueError, KeyError, TypeError) as error:
            uri = self._storage.uri(self._key(name))
            raise StorageError(f"{uri} is damaged: {error}; begin another study") from error
        return record

    @staticmethod
    def _key(name: str) -> str:
        return f"{STUDIES}/{name}/{_RECORD}"


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings as they are read back."""
    return dict(json.loads(dump_plain_json(dict(settings))))
