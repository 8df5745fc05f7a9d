"""Scratch: a task's folder on its host's own disk, for unpacked code and the log's spool."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from raydist import private_folders
from raydist.errors import ClusterError
from raydist.runtime.host.firewall import lift_fences

# <linux/fs.h> on 64-bit x86 and Arm. The macros say long, but the kernel reads and writes an int. Where the
# numbers differ, the call is refused and nothing changes.
_FS_IOC_GETFLAGS, _FS_IOC_SETFLAGS, _FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000


def spread_subfolders(folder: Path) -> None:
    """Asks ext4 to spread the new folders in `folder` over the disk's block groups, as `chattr +T` does.

    On ext4 without a journal, as on some virtual machines, the search for a free inode checks every inode
    that was freed in the same block group in the last minutes, and skips it (`recently_deleted` in
    fs/ext4/ialloc.c). Without this flag, a task gets the group in which its predecessor's files have just
    been deleted. Unpacking 950 files took up to 1.3 s that way, and takes about 0.1 s when spread. With a
    journal the flag makes no difference to that time.

    Overlayfs passes the flag on to the file system below it. Most others refuse it, which does no harm.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = struct.unpack("i", fcntl.ioctl(descriptor, _FS_IOC_GETFLAGS, bytes(4)))
            if not flags & _FS_TOPDIR_FL:
                fcntl.ioctl(descriptor, _FS_IOC_SETFLAGS, struct.pack("i", flags | _FS_TOPDIR_FL))
        finally:
            os.close(descriptor)


# A dead task's folder is left alone this long, so that its own run can salvage its log first.
STALE_AFTER_S = 60.0

_LOCK_NAME = "lock"
_LOCK_POLL_S = 0.02


class Scratch:
    """One task's folder. Its lock is held as long as the process lives, however that ends."""

    def __init__(self, path: Path, *, lock_fd: int) -> None:
        self.path = path
        self._lock_fd: int | None = lock_fd

    @classmethod
    def create(cls, name: str) -> Scratch:
        """Makes the folder, and sweeps what dead tasks of earlier runs left on this host.

        Raises:
          ClusterError: No folder of this user's can be written on this host.
        """
        root = private_folders.make(private_folders.host_places())
        try:
            spread_subfolders(root)
            sweep(root)
            path = root / name
            path.mkdir(mode=0o700)
            lock_fd = hold_lock(path / _LOCK_NAME)
        except OSError as error:
            raise ClusterError(f"cannot make the scratch folder {root / name}: {error}") from error
        return cls(path, lock_fd=lock_fd)

    @property
    def code_path(self) -> Path:
        return self.path / "code"

    def take_temporary_files(self) -> None:
        """Makes this process's temporary files lie in the folder, so that they go with it.

        A killed process removes none: AutoGraph alone leaves a file per converted function.
        """
        os.environ[private_folders.HOST_TMPDIR] = private_folders.host_tmpdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.make_temporary_folder())

    def make_temporary_folder(self) -> Path:
        """Makes a folder for temporary files, and returns it."""
        folder = self.path / "tmp"
        folder.mkdir()
        return folder

    def remove(self) -> None:
        """Deletes the folder and releases its lock. Idempotent."""
        if self._lock_fd is not None:
            lift_fences(self.path)
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock_fd)
            self._lock_fd = None


def scratch_root() -> Path:
    return private_folders.find(private_folders.host_places())


def spool_path(scratch_path: Path) -> Path:
    return scratch_path / "log"


def owner_pid(scratch_path: Path) -> int | None:
    """Returns the process that made the folder; None where it died before it wrote that."""
    try:
        return int((scratch_path / _LOCK_NAME).read_text())
    except (FileNotFoundError, ValueError):
        return None


@contextmanager
def adopted(path: Path, *, timeout_s: float, lock_name: str = _LOCK_NAME) -> Iterator[bool]:
    """Waits until the owner of the folder is dead, then holds its lock; False when it lives on.

    The folder has to exist; deleting it is the caller's to do, inside.
    """
    deadline = time.monotonic() + timeout_s
    lock_fd = _open_lock(path / lock_name)
    try:
        while not (is_ours := _try_lock(lock_fd)) and time.monotonic() < deadline:
            time.sleep(_LOCK_POLL_S)
        yield is_ours
    finally:
        os.close(lock_fd)


def sweep(root: Path, *, stale_after_s: float = STALE_AFTER_S) -> None:
    """Deletes the folders below `root` whose owners are dead and that were last written that long ago."""
    oldest = time.time() - stale_after_s
    for path in root.iterdir():
        # Another task of this host may be sweeping too.
        with suppress(FileNotFoundError):
            if not path.is_dir() or _last_write_s(path) > oldest:
                continue
            with adopted(path, timeout_s=0) as is_dead:
                if is_dead:
                    lift_fences(path)
                    shutil.rmtree(path, ignore_errors=True)


def _last_write_s(path: Path) -> float:
    spool = spool_path(path)
    return max(path.stat().st_mtime, spool.stat().st_mtime if spool.exists() else 0.0)


def hold_lock(path: Path, text: str | None = None) -> int:
    """Takes the lock that a file is, for as long as this process lives or the descriptor is open.

    The file appears under its name once it is locked: if no process holds it, its owner is dead.

    Args:
      text: What is written there; None for this process's id.
    """
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    lock_fd = _open_lock(aside)
    fcntl.flock(lock_fd, fcntl.LOCK_EX)
    os.write(lock_fd, os.fsencode(text or str(os.getpid())))
    aside.rename(path)
    return lock_fd


def _open_lock(path: Path) -> int:
    return private_folders.open_file(path, os.O_RDWR | os.O_CREAT)


def _try_lock(lock_fd: int) -> bool:
    try:
        fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
