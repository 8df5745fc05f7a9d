"""BackupAndRestore of Keras 3 in a task: tests/e2e/test_killed_anywhere.py kills it between its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras with NumPy 2


def backup_in(folder: str, **options: Any) -> Any:
    import keras

    from raydist.training.stepping.backups import replace_whole

    backup = keras.callbacks.BackupAndRestore(folder, **options)
    backup.set_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
    replace_whole(backup)
    backup.on_epoch_end(0)
    return backup


def test_backup_may_be_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    backup = backup_in(".")
    assert {path.name for path in folder.iterdir()} == {
        Path(path).name for path in (backup._weights_path, backup._training_metadata_path)
    }
    assert [path.name for path in tmp_path.iterdir()] == ["work"]  # what was written aside is gone


def test_backup_before_is_kept_where_the_user_asks_for_two(tmp_path: Path) -> None:
    backup = backup_in(str(tmp_path), double_checkpoint=True)
    backup.on_epoch_end(1)
    assert Path(backup._prev_weights_path).exists()
