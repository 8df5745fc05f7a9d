"""TensorBoard's server, in a thread of this process."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import socket
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Sequence
from pathlib import Path

from raydist.board.mirror import Mirror
from raydist.errors import MistakeError, StorageError
from raydist.storage.filesystem import Storage

DEFAULT_PORT = 6006
REFRESH_S = 5.0

logger = logging.getLogger(__name__)


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
        with _refreshed(mirror):
            yield _launch(folder, host=host, port=_free_port(host) if port is None else port)


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


def _launch(folder: Path, *, host: str, port: int) -> str:
    # Has TensorBoard do without TensorFlow (tensorboard/compat/__init__.py), which takes seconds and 400 MB
    # to import, and which a local folder does not need.
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    from tensorboard import program

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it warns of its own HTTP headers
    board = program.TensorBoard()
    arguments = ["--logdir", str(folder), "--host", host, "--port", str(port)]
    board.configure(argv=["tensorboard", *arguments, "--reload_interval", f"{REFRESH_S:g}"])
    try:
        return str(board.launch()).rstrip("/")
    except program.TensorBoardServerException as error:
        raise MistakeError(
            f"TensorBoard cannot listen on {host}:{port}: {error}; give another --port"
        ) from error


def _free_port(host: str) -> int:
    for port in (DEFAULT_PORT, 0):
        with contextlib.suppress(OSError), socket.create_server((host, port)) as probe:
            return int(probe.getsockname()[1])
    raise MistakeError(f"{host} cannot be listened on; give an address of this host with --host")
