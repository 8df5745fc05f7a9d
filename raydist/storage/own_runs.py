"""Which runs this user has started from this machine: what `raydist stop` believes, whatever a storage says.

Others may be able to write to a run's storage. The process or the Ray that its run.json names is signalled or
joined only if it is noted here too, in a folder that nobody else can write to.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from raydist.private_folders import read_text, state_folder, write_text
from raydist.storage.run_storage import RunStorage

_KEPT_S = 90 * 24 * 3600.0
_FOLDER = "runs"


def remember(
    storage: RunStorage, *, addresses: Iterable[str | None], driver: Mapping[str, Any] | None = None
) -> None:
    """Notes where a run of this user's is driven. Does nothing where there is no private folder for it.

    Args:
      addresses: Of the Ray that it is in, as it was asked for and as it was found.
      driver: The process of this host that drives it; None for a controller in that Ray.
    """
    with suppress(OSError):
        folder = state_folder(_FOLDER)
        for note in folder.iterdir():
            with suppress(OSError):  # another run has just removed it
                if time.time() - note.lstat().st_mtime > _KEPT_S:
                    note.unlink(missing_ok=True)
        noted = {"addresses": [one for one in addresses if one], "driver": driver}
        write_text(folder / _name_of(storage), json.dumps(noted))


def recall(storage: RunStorage) -> Mapping[str, Any]:
    """Returns `addresses` and `driver` as they were noted; nothing of a run that was not."""
    try:
        noted = json.loads(read_text(state_folder(_FOLDER) / _name_of(storage)))
    except (OSError, ValueError):
        return {}
    return noted if isinstance(noted, dict) else {}


def forget(storage: RunStorage) -> None:
    """Removes what was noted of a run. Idempotent."""
    with suppress(OSError):
        (state_folder(_FOLDER) / _name_of(storage)).unlink(missing_ok=True)


def _name_of(storage: RunStorage) -> str:
    path = storage.local_path(storage.run)
    place = storage.uri(storage.run) if path is None else os.path.realpath(path)
    return f"{hashlib.sha256(place.encode()).hexdigest()[:32]}.json"
