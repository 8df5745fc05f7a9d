"""Folders of this user's alone, in which no other user of the host can read, replace or make files.

Other users can write to the folder of temporary files, and may have made a folder there before this user.
Then the next place is taken. A folder that is a link, belongs to somebody else, or can be written by others
is not used. Relative paths in the XDG variables are ignored, as their specification asks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from raydist.errors import ClusterError

# In a task, whose own TMPDIR is its scratch folder, the host's folder of temporary files.
HOST_TMPDIR = "RAYDIST_HOST_TMPDIR"
_IN_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PrivateFolderError(ClusterError, OSError):
    """There is no place for such a folder."""


def host_places(suffix: str = "") -> list[Path]:
    """Returns where a folder may be that belongs to this host, the first choice first.

    A home may be shared by hosts, so the host is part of the name there.
    """
    places = [Path(host_tmpdir()) / f"raydist-{os.geteuid()}{suffix}"]
    if (cache := _of_user("XDG_CACHE_HOME", ".cache")) is not None:
        places.append(cache / "raydist" / f"on-{platform.node()}{suffix}")
    if (runtime := _absolute(os.environ.get("XDG_RUNTIME_DIR"))) is not None:
        places.append(runtime / f"raydist{suffix}")
    return places


def host_tmpdir() -> str:
    """Returns the folder of temporary files that is this host's, and not a task's."""
    return os.environ.get(HOST_TMPDIR) or tempfile.gettempdir()


def run_folder() -> Path:
    """Returns this host's folder of locks, sockets and notes of what runs here."""
    return make(host_places("-run"))


def state_folder(name: str) -> Path:
    """Returns a folder for what is to be known after the host's restart."""
    state = _of_user("XDG_STATE_HOME", ".local/state")
    return make([*([] if state is None else [state / "raydist" / name]), *host_places(f"-{name}")])


def make(places: Iterable[Path]) -> Path:
    """Makes the folder at the first of the places where that is possible; returns it.

    Raises:
      PrivateFolderError: What is wrong with each of them.
    """
    problems = []
    for folder in places:
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            with opened(folder):
                return folder
        except OSError as error:
            problems.append(_sentence(folder, error))
    raise PrivateFolderError(
        f"there is no folder that only you can write to: {'; '.join(problems)}; "
        "set TMPDIR to a folder of yours, or XDG_RUNTIME_DIR"
    )


def find(places: Iterable[Path]) -> Path:
    """Returns the folder that `make` returns, without making it."""
    places = list(places)
    return next((folder for folder in places if is_private(folder) or _can_be_made(folder)), places[0])


def is_private(folder: Path) -> bool:
    """Whether the folder is there and this user's alone."""
    try:
        with opened(folder):
            return True
    except OSError:
        return False


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Yields a descriptor of the folder; raises OSError if it is not this user's alone."""
    descriptor = os.open(folder, os.O_RDONLY | _IN_FOLDER)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to user {found.st_uid}")
        if found.st_mode & 0o002:  # a group may be this user's own, as by a umask of 002
            raise PermissionError(f"others can write to {folder}; remove it")
        if found.st_mode & 0o077:
            os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits for the lock that a file of such a folder is, and holds it."""
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def open_file(path: Path, flags: int) -> int:
    """Opens a file, which is readable for this user only if it is made; raises OSError for a link."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def write_text(path: Path, text: str) -> None:
    """Replaces a file of such a folder by one with that text."""
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    aside.unlink(missing_ok=True)
    with open(open_file(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
        file.write(text)
    aside.replace(path)


def read_text(path: Path) -> str:
    """Returns the text of a file; raises OSError for a link."""
    with open(open_file(path, os.O_RDONLY | os.O_NONBLOCK)) as file:
        return file.read()


def _can_be_made(folder: Path) -> bool:
    there = next(parent for parent in folder.parents if os.path.exists(parent))
    return not os.path.lexists(folder) and os.access(there, os.W_OK | os.X_OK)


def _of_user(variable: str, in_home: str) -> Path | None:
    given = _absolute(os.environ.get(variable))
    home = _absolute(os.path.expanduser("~"))
    return given or (None if home is None else home / in_home)


def _absolute(path: str | None) -> Path | None:
    return Path(path) if path and os.path.isabs(path) else None


def _sentence(folder: Path, error: OSError) -> str:
    with contextlib.suppress(OSError):
        if folder.is_symlink():
            return f"{folder} is a link of user {folder.lstat().st_uid}"
    return str(error) if error.strerror is None else f"{folder}: {error.strerror}"
