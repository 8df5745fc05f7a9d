"""BackupAndRestore of Keras 3, which writes its two files one after the other.

A process that dies in between would leave weights of one epoch with the number of another, or a file that is
not whole.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from raydist import tf_private

_WHOLE = "whole"


def replace_whole(backup: Any) -> None:
    """Has a backup replace the one before as a whole, and completes one that was cut off. In the chief.

    One of tf_keras does that by itself, and on storage that is no folder each file stays Keras's.
    """
    if not hasattr(backup, "_training_metadata_path") or "://" in str(backup.backup_dir):
        return
    folder = Path(backup.backup_dir)
    aside = folder.with_name(f"{folder.name}.raydist")
    _commit(aside, folder)
    if "_save_model" in vars(backup):  # of an earlier fit
        return
    save = backup._save_model
    paths = {name: aside / Path(getattr(backup, name)).name for name in _PATHS}

    def save_whole() -> None:
        shutil.rmtree(aside, ignore_errors=True)
        places = {name: str(path) for name, path in paths.items()}
        with tf_private.changed(backup, backup_dir=str(aside), double_checkpoint=False, **places):
            save()
        (aside / _WHOLE).touch()
        _commit(aside, folder)

    backup._save_model = save_whole


_PATHS = ("_weights_path", "_training_metadata_path")


def _commit(aside: Path, folder: Path) -> None:
    if (aside / _WHOLE).exists():
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(aside.iterdir()):
            if path.name != _WHOLE:
                os.replace(path, folder / path.name)
    shutil.rmtree(aside, ignore_errors=True)
