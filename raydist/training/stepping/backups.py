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

    One of tf_keras does that by itself, and `double_checkpoint` keeps the backup before. Elsewhere than in a
    local folder each file stays Keras's.
    """
    is_of_two_files = hasattr(backup, "_training_metadata_path")
    if not is_of_two_files or getattr(backup, "double_checkpoint", False) or "://" in str(backup.backup_dir):
        return
    folder = Path(os.path.abspath(backup.backup_dir))
    aside = folder.with_name(f"{folder.name}.raydist")
    _commit(aside, folder)
    if "_save_model" in vars(backup):  # of an earlier fit
        return
    save = backup._save_model
    paths = {name: aside / Path(getattr(backup, name)).name for name in _PATHS}

    def save_whole() -> None:
        shutil.rmtree(aside, ignore_errors=True)
        places = {name: str(path) for name, path in paths.items()}
        with tf_private.changed(backup, backup_dir=str(aside), **places):
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
                if path.is_dir():  # which cannot replace one that is not empty
                    shutil.rmtree(folder / path.name, ignore_errors=True)
                os.replace(path, folder / path.name)
    shutil.rmtree(aside, ignore_errors=True)
