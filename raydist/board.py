"""TensorBoard over the runs of a storage: a local mirror of their files, and TensorBoard's server."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raydist.errors import MistakeError, StorageError
from raydist.page.server import is_own_host, new_token, own_names
from raydist.spec.quantities import size_text
from raydist.storage.filesystem import FoundFile, Storage
from raydist.storage.layout import INDEX, STUDIES, RunLayout
from raydist.storage.limits import safe_name
from raydist.storage.local_files import append_whole

logger = logging.getLogger(__name__)

# A run that has not grown is looked at less and less often: a store with thousands of them charges for it.
_MIN_WAIT_S = 5.0
_MAX_WAIT_S = 300.0
_WAIT_SHARE = 0.25
_THREADS = 8
_PROFILES = "/plugins/profile/"
_EVENTS = ".tfevents."
_MAX_FILE_BYTES = 512 * 2**20
_PART = ".part"  # the end of a name that TensorBoard does not read


@dataclass
class _Seen:
    """What was found of a run; times are the clock's seconds."""

    grown_at_s: float
    next_look_at_s: float
    files: dict[str, FoundFile] = field(default_factory=dict)


class Mirror:
    """Keeps a folder with a copy of each run's event files and profiles, in a folder of the run's name.

    TensorBoard follows links, and its projector opens each path that a file names, so it gets nothing else.
    It reads no object store without other packages.
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
        self._told: set[str] = set()
        # To look at a local folder costs nothing.
        self._max_wait_s = _MIN_WAIT_S if storage.local_path() is not None else _MAX_WAIT_S

    def refresh(self) -> None:
        """Brings the folder up to date; raises StorageError where that can be done for none of the runs."""
        names = self._storage.list_names("") if self._runs is None else self._runs
        runs = [name for name in names if name not in (INDEX, STUDIES)]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="raydist-board") as threads:
            problems = [found for found in threads.map(self._tried, runs) if found]
        if problems and len(problems) == len(runs):
            raise problems[0]
        for sentence in {str(error) for error in problems} - self._told:  # the others are shown all the same
            self._told.add(sentence)
            logger.warning("left out: %s", sentence)

    def _tried(self, run: str) -> StorageError | None:
        try:
            self._copy(run)
        except StorageError as error:
            return error
        return None

    def _copy(self, run: str) -> None:
        now_s = self._clock()
        seen = self._seen.setdefault(run, _Seen(grown_at_s=now_s, next_look_at_s=now_s))
        if now_s < seen.next_look_at_s:
            return
        layout = RunLayout(run=run)
        folders = {layout.tensorboard: "", layout.output: "output/"}  # what callbacks of the job's own wrote
        names = {
            file: f"{below}{file.key.removeprefix(f'{key}/')}"
            for key, below in folders.items()
            for file in self._storage.list_files(key)
        }
        if not names:
            shutil.rmtree(self._folder / run, ignore_errors=True)  # the run was deleted
        for file in filter(_is_shown, names):
            if seen.files.get(file.key) != file and self._download(run, file, names[file]):
                seen.files[file.key] = file
                seen.grown_at_s = now_s
        quiet_s = now_s - seen.grown_at_s
        seen.next_look_at_s = now_s + max(_MIN_WAIT_S, min(self._max_wait_s, _WAIT_SHARE * quiet_s))

    def _download(self, run: str, file: FoundFile, name: str) -> bool:
        try:
            target = self._folder / run / safe_name(name)
        except ValueError as error:
            logger.warning("%s is damaged: %s", self._storage.uri(run), error)
            return False
        part = self._folder / f"{run}-{file.key.replace('/', '-')}{_PART}"
        try:
            self._storage.download(file.key, part)
        except StorageError as error:  # the others are shown all the same
            logger.warning("%s is not shown yet: %s", self._storage.uri(file.key), error)
            return False
        target.parent.mkdir(parents=True, exist_ok=True)
        _grow(target, part)
        return True


def _grow(target: Path, part: Path) -> None:
    """Adds to a file what its newer copy has more, because TensorBoard keeps the file open."""
    old, new = target.read_bytes() if target.exists() else b"", part.read_bytes()
    if old and new.startswith(old):
        append_whole(target, new[len(old) :])
        part.unlink()
    else:
        os.replace(part, target)


def _is_shown(file: FoundFile) -> bool:
    """Whether the file is an event file or a profile, and not too large to copy."""
    is_known = _EVENTS in file.key.rpartition("/")[2] or _PROFILES in file.key
    if is_known and file.size_bytes > _MAX_FILE_BYTES:
        logger.warning("%s is not shown: it has more than %s", file.key, size_text(_MAX_FILE_BYTES))
    return is_known and file.size_bytes <= _MAX_FILE_BYTES


DEFAULT_PORT = 6006
REFRESH_S = 5.0


def check_installed() -> None:
    """Raises MistakeError unless TensorBoard can be started."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MistakeError("TensorBoard is not installed; `pip install 'raydist[tensorboard]'` installs it")


@contextlib.contextmanager
def running_tensorboard(
    storage: Storage, *, runs: Sequence[str] | None, host: str, port: int | None
) -> Iterator[str]:
    """Yields the URL of a TensorBoard that shows runs, and keeps up with them until the block ends.

    Args:
      runs: Their names; None shows all of the storage.
      port: None takes DEFAULT_PORT, or any other where that is taken.

    Raises:
      MistakeError: TensorBoard is not installed, the port is taken, or the host is none of this machine.
      StorageError: Storage cannot be read.
    """
    check_installed()
    with tempfile.TemporaryDirectory(prefix="raydist-tensorboard-") as name:
        folder = Path(name) / "runs"
        folder.mkdir()
        mirror = Mirror(storage, folder, runs=runs)
        mirror.refresh()
        port = _free_port(host) if port is None else port
        with _refreshed(mirror), _launched(folder, host=host, port=port) as url:
            yield url


@contextlib.contextmanager
def _refreshed(mirror: Mirror) -> Iterator[None]:
    is_done = threading.Event()

    def refresh() -> None:
        while not is_done.wait(REFRESH_S):
            try:
                mirror.refresh()
            except StorageError as error:
                logger.warning("TensorBoard shows what was there before: %s", error)

    thread = threading.Thread(target=refresh, name="raydist-mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()


@contextlib.contextmanager
def _launched(folder: Path, *, host: str, port: int) -> Iterator[str]:
    # Has TensorBoard do without TensorFlow (tensorboard/compat/__init__.py), which takes seconds and 400 MB
    # to import, and which a local folder does not need.
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard import program

    servers = []

    def serve(application: Callable[..., Any], flags: Any) -> Any:
        servers.append(program.WerkzeugServer(_only_to_own_name(application, host=host), flags))
        return servers[-1]

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of its own HTTP headers
    board = program.TensorBoard(server_class=serve)
    options = {"logdir": str(folder), "host": host, "port": str(port), "path_prefix": f"/{new_token()}"}
    # The data server of --load_fast would answer every user of this machine.
    options |= {"load_fast": "false", "reload_interval": f"{REFRESH_S:g}"}
    board.configure(argv=["tensorboard", *(f"--{name}={value}" for name, value in options.items())])
    try:
        url = str(board.launch()).rstrip("/")
    except program.TensorBoardServerException as error:
        raise MistakeError(
            f"TensorBoard cannot listen on {host}:{port}: {error}; give another --port"
        ) from error
    try:
        yield url
    finally:
        servers[0].shutdown()
        servers[0].server_close()


def _only_to_own_name(application: Callable[..., Any], *, host: str) -> Callable[..., Any]:
    """Returns a WSGI application that answers nobody who asks for another host's name."""

    def answer(environ: Any, start: Callable[..., Any]) -> Any:
        if is_own_host(environ.get("HTTP_HOST"), names=own_names(host)):
            return application(environ, start)
        start("403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", "0")])
        return []

    return answer


def _free_port(host: str) -> int:
    for port in (DEFAULT_PORT, 0):
        with contextlib.suppress(OSError), socket.create_server((host, port)) as probe:
            return int(probe.getsockname()[1])
    raise MistakeError(f"{host} cannot be listened on; give an address of this host with --host")
