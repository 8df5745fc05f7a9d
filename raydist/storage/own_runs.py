"""Which runs this user has started from this machine: what `raydist stop` believes, whatever a storage says.

Others may be able to write to a run's storage. The process or the Ray that its run.json names is signalled or
joined only if it is noted here too, in a folder that nobody else can write to.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from raydist.storage.run_storage import RunStorage

_KEPT_S = 90 * 24 * 3600.0


def remember(
    storage: RunStorage, *, addresses: Iterable[str | None], driver: Mapping[str, Any] | None = None
) -> None:
    """Notes where a run of this user's is driven. Does nothing where there is no private folder for it.

    Args:
      addresses: Of the Ray that it is in, as it was asked for and as it was found.
      driver: The process of this host that drives it; None for a controller in that Ray.
    """
    with suppress(OSError):
        folder = _private_folder()
        for note in folder.iterdir():
            with suppress(OSError):  # another run has just removed it
                if time.time() - note.lstat().st_mtime > _KEPT_S:
                    note.unlink(missing_ok=True)
        note = folder / _name_of(storage)
        note.unlink(missing_ok=True)
        descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w") as file:
            json.dump({"addresses": [one for one in addresses if one], "driver": driver}, file)


def recall(storage: RunStorage) -> Mapping[str, Any]:
    """Returns `addresses` and `driver` as they were noted; nothing of a run that was not."""
    try:
        descriptor = os.open(
            _private_folder() / _name_of(storage), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        with open(descriptor) as file:
            noted = json.load(file)
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def forget(storage: RunStorage) -> None:
    """Removes what was noted of a run. Idempotent."""
    with suppress(OSError):
        (_private_folder() / _name_of(storage)).unlink(missing_ok=True)


def _private_folder() -> Path:
    """Returns the folder, which is made; raises OSError where it cannot be, or belongs to somebody else."""
    state = os.environ.get("XDG_STATE_HOME")
    if not state and not os.environ.get("HOME"):
        raise FileNotFoundError("HOME is not set")
    folder = (Path(state) if state else Path.home() / ".local" / "state") / "raydist" / "runs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is not a folder of this user's alone")
    return folder


def _name_of(storage: RunStorage) -> str:
    path = storage.local_path(storage.run)
    place = storage.uri(storage.run) if path is None else os.path.realpath(path)
    return f"{hashlib.sha256(place.encode()).hexdigest()[:32]}.json"
