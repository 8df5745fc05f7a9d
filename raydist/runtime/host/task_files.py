"""What a task writes for its user, kept with the run: ctx.output_dir, and its working folder."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import stat
import threading
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from raydist.errors import StorageError
from raydist.runtime.host.log_capture import LogTarget
from raydist.spec.quantities import size_text
from raydist.spec.text import counted, listed
from raydist.storage.layout import RunLayout

if TYPE_CHECKING:
    from raydist.storage.run_storage import RunStorage

logger = logging.getLogger(__name__)

# How often the output folder is stored while the task is running.
STORE_INTERVAL_S = 60.0
# What is kept of a working folder: data that a job has downloaded are not results.
MAX_WORKING_BYTES = 100 * 10**6
MAX_WORKING_FILES = 1000

_TOOLS_FOLDERS = frozenset(
    (".git", ".hg", ".svn", ".mypy_cache", ".pytest_cache", ".ruff_cache", "__pycache__", "raydist_runs")
)
# What makes a folder a virtual environment, or a run on storage.
_TOOLS_FOLDERS_WITH = ("pyvenv.cfg", "run.json")
_PRODUCT = re.compile(r".+-[0-9]{8}-[0-9]{6}-[0-9a-f]{4}(?:-(?:code|export|output)|\.html)")
_OUTPUT, _STATE = "output", "task_files.json"
_THREADS = 8


class _Version(NamedTuple):
    """What a file is now, as far as a change of it shows."""

    size_bytes: int
    modified_ns: int


_Files = dict[str, _Version]


class TaskFiles:
    """The files of one task's process. Every method may be called from any thread.

    What it has stored is noted in the scratch folder, so that what a killed process left can be stored too.
    """

    def __init__(self, scratch_path: Path, target: LogTarget, *, is_chief: bool) -> None:
        self._scratch_path = scratch_path
        self._is_chief = is_chief
        self._target = target
        self._key = RunLayout(run=target.run).task_output(target.task, is_chief=is_chief)
        self._lock = threading.RLock()
        self._stored: _Files | None = None  # of the output folder; None until that is asked for
        self._code_path: Path | None = None
        self._code: _Files = {}
        self._kept: _Files = {}

    @classmethod
    def left_in(cls, scratch_path: Path, target: LogTarget) -> TaskFiles | None:
        """Returns those of a process that has died; None where it had none to keep."""
        try:
            state = json.loads((scratch_path / _STATE).read_bytes())
        except (FileNotFoundError, ValueError):
            return None
        files = cls(scratch_path, target, is_chief=state["is_chief"])
        files._stored = None if state["stored"] is None else _versions(state["stored"])
        files._code_path = None if state["code_path"] is None else Path(state["code_path"])
        files._code, files._kept = _versions(state["code"]), _versions(state["kept"])
        return files

    @functools.cached_property
    def _storage(self) -> RunStorage:
        from raydist.storage.run_storage import open_run

        return open_run(self._target.storage_uri, run=self._target.run)

    def watch_working_folder(self, folder: Path) -> None:
        """Takes note of the files that are there before the job writes any; of the chief only."""
        if self._is_chief:
            with self._lock:
                self._code_path, self._code = folder, _find(folder, with_tools=False)
                self._note_state()

    @property
    def output_dir(self) -> Path:
        """The folder for what the job writes, which holds what the attempts before have stored.

        Raises:
          StorageError: That cannot be read.
        """
        folder = self._scratch_path / _OUTPUT
        with self._lock:
            if self._stored is None:
                folder.mkdir(exist_ok=True)
                is_wanted = RunLayout.is_chief_output if self._is_chief else lambda name: True
                self._storage.download_folder(self._key, folder, is_wanted=is_wanted)
                self._stored = _find(folder)
                self._note_state()
                threading.Thread(target=self._store_regularly, name="raydist-output", daemon=True).start()
        return folder

    def store_output(self, *, on_file: Callable[[], None] = lambda: None, is_patient: bool = True) -> None:
        """Stores what has changed in the output folder, and deletes from storage what was deleted there.

        Args:
          on_file: Called for each file.
          is_patient: Whether it is worth waiting for a storage that is out of order.

        Raises:
          StorageError: Something is not stored.
        """
        with self._lock:
            if self._stored is not None:
                folder = self._scratch_path / _OUTPUT
                self._mirror(folder, self._key, _find(folder), self._stored, on_file, is_patient=is_patient)

    def keep_working_files(self) -> str | None:
        """Stores the new and changed files of the working folder; returns sentences about them, if any.

        Each file and folder at its top is taken whole, the smallest first, while they fit into the limits.
        What only earlier attempts have written is not left among them, but stored elsewhere.
        """
        with self._lock:
            if self._code_path is None:
                return None
            found = _find(self._code_path, with_tools=False)
            new = {name: version for name, version in found.items() if self._code.get(name) != version}
            entries = _entries({name: version.size_bytes for name, version in new.items()})
            chosen = _within_limits(entries)
            key, names = RunLayout(run=self._target.run).working_files, {entry.name for entry in chosen}
            files = {name: version for name, version in new.items() if top_of(name) in names}
            try:
                self._mirror(self._code_path, key, files, self._kept)
                earlier = self._set_earlier_aside(files) if new and self._target.attempt > 0 else []
            except StorageError as error:
                return f"what the job has written into its working folder is not kept: {error}"
        return _describe(chosen, entries[len(chosen) :], earlier) if new else None

    def _set_earlier_aside(self, files: Container[str]) -> list[_Entry]:
        """Moves what this attempt has not written out of the working files; returns all that is there."""
        storage = self._storage
        local = self._scratch_path / "earlier"
        for file in storage.list_files(storage.working_files):
            name = file.key.removeprefix(f"{storage.working_files}/")
            if name not in files:
                storage.download(file.key, local)
                storage.upload(local, f"{storage.earlier_files}/{name}")
                storage.delete(file.key)
        sizes = {}
        for file in storage.list_files(storage.earlier_files):
            name = file.key.removeprefix(f"{storage.earlier_files}/")
            if name in files:
                storage.delete(file.key)
            else:
                sizes[name] = file.size_bytes
        local.unlink(missing_ok=True)
        return _entries(sizes)

    def store_rest(self) -> str | None:
        """Stores what is not stored yet, as far as that can be; returns sentences about it, if any."""
        try:
            self.store_output(is_patient=False)
        except StorageError as error:
            logger.warning("the last files of ctx.output_dir are lost: %s", error)
        return self.keep_working_files()

    def _store_regularly(self) -> None:
        never, has_warned = threading.Event(), False
        while not never.wait(STORE_INTERVAL_S):
            try:
                self.store_output(is_patient=False)
            except StorageError as error:
                if not has_warned:
                    logger.warning("ctx.output_dir is not stored yet: %s", error)
                has_warned = True

    def _mirror(
        self,
        folder: Path,
        key: str,
        files: _Files,
        stored: _Files,
        on_file: Callable[[], None] = lambda: None,
        *,
        is_patient: bool = False,
    ) -> None:
        """Makes what is stored below `key` equal to `files` of a folder, and `stored` say so."""

        def upload(name: str) -> None:
            if (folder / name).is_file():  # not deleted in between
                storage.upload(folder / name, f"{key}/{name}")
                stored[name] = files[name]
            on_file()

        if files == stored:
            return
        storage = self._storage.patient() if is_patient else self._storage
        changed = [name for name in files if files[name] != stored.get(name)]
        try:
            # First, because a folder may have the name now that a file had.
            for name in stored.keys() - files.keys():
                storage.delete(f"{key}/{name}")
                del stored[name]
            with ThreadPoolExecutor(_THREADS, thread_name_prefix="raydist-output") as threads:
                for _ in threads.map(upload, changed):
                    pass
        finally:
            self._note_state()

    def _note_state(self) -> None:
        state = {
            "is_chief": self._is_chief,
            "stored": self._stored,
            "code_path": None if self._code_path is None else str(self._code_path),
            "code": self._code,
            "kept": self._kept,
        }
        path = self._scratch_path / _STATE
        try:
            path.with_suffix(".tmp").write_text(json.dumps(state))
            path.with_suffix(".tmp").replace(path)
        except OSError as error:  # only a process that is killed misses it
            logger.warning("cannot write %s: %s", path, error.strerror)


class _Entry(NamedTuple):
    """A file or folder at the top of a working folder."""

    num_bytes: int
    num_files: int
    name: str

    def __str__(self) -> str:
        size = size_text(self.num_bytes)
        return (
            f"{self.name} ({counted(self.num_files, 'file')}, {size})"
            if self.name.endswith("/")
            else self.name
        )


def is_tools_folder(folder: Path) -> bool:
    """Whether a folder holds nothing of the user's: version control, a cache, an environment or a run."""
    if folder.name in _TOOLS_FOLDERS or is_product(folder.name):
        return True
    return any((folder / name).exists() for name in _TOOLS_FOLDERS_WITH)


def is_product(name: str) -> bool:
    """Whether raydist has made it of a run that it named itself: RUN-code, RUN.html and the like."""
    return _PRODUCT.fullmatch(name) is not None


def is_bytecode(name: str) -> bool:
    return name.endswith((".pyc", ".pyo"))


def _find(folder: Path, *, with_tools: bool = True) -> _Files:
    """Returns the files below `folder` by their names; links to other folders are not followed."""
    found: _Files = {}
    for parent, folders, names in os.walk(folder):
        if not with_tools:
            folders[:] = [name for name in folders if not is_tools_folder(Path(parent, name))]
            names = [name for name in names if not is_bytecode(name)]
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):  # deleted in between, or a dangling link
                status = path.stat()
                relative = path.relative_to(folder).as_posix()
                if stat.S_ISREG(status.st_mode) and _can_be_stored(relative):
                    found[relative] = _Version(status.st_size, status.st_mtime_ns)
    return found


def _can_be_stored(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        logger.warning("%r is not kept: its name is not UTF-8", name)
        return False
    return True


def _versions(state: Mapping[str, Sequence[int]]) -> _Files:
    return {name: _Version(*version) for name, version in state.items()}


def top_of(name: str) -> str:
    """Returns what of the working folder's top a file is, or is in."""
    top, slash, _ = name.partition("/")
    return top + slash


def _entries(sizes: Mapping[str, int]) -> list[_Entry]:
    """Returns what is at the top of a folder of such files, the smallest first."""
    num_bytes: Counter[str] = Counter()
    num_files: Counter[str] = Counter()
    for name, size_bytes in sizes.items():
        num_bytes[top_of(name)] += size_bytes
        num_files[top_of(name)] += 1
    return sorted(_Entry(num_bytes[top], num_files[top], top) for top in num_files)


def _within_limits(entries: Sequence[_Entry]) -> list[_Entry]:
    """Returns the first of them, as many as fit."""
    num_bytes = num_files = 0
    for index, entry in enumerate(entries):
        num_bytes, num_files = num_bytes + entry.num_bytes, num_files + entry.num_files
        if num_bytes > MAX_WORKING_BYTES or num_files > MAX_WORKING_FILES:
            return list(entries[:index])
    return list(entries)


def _describe(kept: Sequence[_Entry], left_out: Sequence[_Entry], earlier: Sequence[_Entry]) -> str:
    sentences = []
    if kept:
        count, size = sum(entry.num_files for entry in kept), size_text(sum(one.num_bytes for one in kept))
        sentences.append(
            f"the run keeps {counted(count, 'file')} ({size}) that the job wrote into its working folder, in "
            f"output/working_dir: {listed(kept)}"
        )
    if left_out:
        sentences.append(
            f"the run does not keep {listed(left_out)} of the working folder, of which it keeps at most "
            f"{MAX_WORKING_BYTES // 10**6} MB and {MAX_WORKING_FILES} files; ctx.output_dir has no limit"
        )
    if earlier:
        sentences.append(f"output/earlier_attempts holds what only earlier attempts wrote: {listed(earlier)}")
    return "; ".join(sentences)
