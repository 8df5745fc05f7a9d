"""Mirror: a local folder with what the runs of a storage have for TensorBoard."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from raydist.errors import StorageError
from raydist.storage.checkpoint_marker import safe_name
from raydist.storage.filesystem import FoundFile, Storage
from raydist.storage.layout import INDEX, STUDIES, RunLayout

# A run that has not grown is looked at less and less often: a store with thousands of them charges for it.
_MIN_WAIT_S = 5.0
_MAX_WAIT_S = 300.0
_WAIT_SHARE = 0.25
_THREADS = 8
_PROFILES = "plugins/profile"
_PART = ".part"  # the end of a name that TensorBoard does not read

logger = logging.getLogger(__name__)


@dataclass
class _Seen:
    """What was found of a run; times are the clock's seconds."""

    grown_at_s: float
    next_look_at_s: float
    files: dict[str, FoundFile] = field(default_factory=dict)


class Mirror:
    """Keeps a folder in which each run has a folder of its name: a link, or copies from an object store.

    TensorBoard itself reads no object store without other packages.
    """

    def __init__(
        self,
        storage: Storage,
        folder: Path,
        *,
        runs: Sequence[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes an empty folder; `runs` is None for all that the storage has, and will have."""
        self._storage = storage
        self._folder = folder
        self._runs = runs
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def refresh(self) -> None:
        """Brings the folder up to date; raises StorageError where that cannot be done now."""
        names = self._storage.list_names("") if self._runs is None else self._runs
        keys = {name: RunLayout(run=name).tensorboard for name in names if name not in (INDEX, STUDIES)}
        if self._storage.local_path() is not None:
            for name, key in keys.items():
                self._link(name, self._storage.local_path(key))
            return
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="raydist-board") as threads:
            for _ in threads.map(self._copy, keys, keys.values()):
                pass

    def _link(self, run: str, source: Path | None) -> None:
        link = self._folder / run
        profiles = [] if source is None else sorted(source.glob(f"*/{_PROFILES}/*"))
        if source is None or not source.is_dir():
            _remove(link)  # the run was deleted
        elif not profiles and not os.path.lexists(link):
            link.symlink_to(source)
        elif profiles:
            _link_around(source, link, profiles)

    def _copy(self, run: str, key: str) -> None:
        now_s = self._clock()
        seen = self._seen.setdefault(run, _Seen(grown_at_s=now_s, next_look_at_s=now_s))
        if now_s < seen.next_look_at_s:
            return
        for file in self._storage.list_files(key):
            if seen.files.get(file.key) != file and self._download(run, file, key):
                seen.files[file.key] = file
                seen.grown_at_s = now_s
        quiet_s = now_s - seen.grown_at_s
        seen.next_look_at_s = now_s + max(_MIN_WAIT_S, min(_MAX_WAIT_S, _WAIT_SHARE * quiet_s))

    def _download(self, run: str, file: FoundFile, key: str) -> bool:
        try:
            target = self._folder / run / safe_name(file.key.removeprefix(f"{key}/"))
        except ValueError as error:
            raise StorageError(f"{self._storage.uri(key)} is damaged: {error}") from error
        part = self._folder / f"{run}-{file.key.replace('/', '-')}{_PART}"
        try:
            self._storage.download(file.key, part)
        except StorageError as error:  # the others are shown all the same
            logger.warning("%s is not shown yet: %s", self._storage.uri(file.key), error)
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, target)
        return True


def _link_around(source: Path, folder: Path, profiles: Sequence[Path]) -> None:
    """Makes a folder with links to all that a run has, but copies of its profiles.

    The profile plugin looks into no links, and writes its own files beside those of a profile.
    """
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(exist_ok=True)
    tasks = {profile.relative_to(source).parts[0] for profile in profiles}
    for child in source.iterdir():
        if child.name not in tasks and not os.path.lexists(folder / child.name):
            (folder / child.name).symlink_to(child)
    for profile in profiles:
        target = folder / profile.relative_to(source)
        if not target.exists():
            part = folder.parent / f"{folder.name}-{profile.name}{_PART}"
            shutil.copytree(profile, part, dirs_exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)


def _remove(place: Path) -> None:
    if place.is_symlink():
        place.unlink()
    elif place.is_dir():
        shutil.rmtree(place)
