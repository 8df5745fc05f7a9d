"""What XLA compiles in this task, kept with the run where the job asks for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from raydist.errors import StorageError
from raydist.spec.tasks import TaskId
from raydist.storage.run_storage import RunStorage

_FLAGS = "XLA_FLAGS"


class XlaDump:
    """A local folder that XLA writes to, stored at the end. What goes wrong costs a note."""

    def __init__(self, storage: RunStorage, task: TaskId, *, attempt: int, folder: Path) -> None:
        self._storage = storage
        self._task = task
        self._attempt = attempt
        self._folder = folder

    @classmethod
    def begin(cls, storage: RunStorage, task: TaskId, *, attempt: int) -> XlaDump:
        """Has XLA write to a new folder. XLA reads its flags when it compiles for the first time."""
        folder = Path(tempfile.mkdtemp(prefix="raydist-xla-"))
        own = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        os.environ[_FLAGS] = f"{os.environ.get(_FLAGS, '')} {own}".strip()
        return cls(storage, task, attempt=attempt, folder=folder)

    def close(self, note: Callable[[str], None]) -> None:
        """Stores what was written, and removes the folder; notes it if there is nothing."""
        target = self._storage.xla_dump(self._task, attempt=self._attempt)
        files = sorted(path for path in self._folder.rglob("*") if path.is_file())
        try:
            for path in files:
                self._storage.upload(path, f"{target}/{path.relative_to(self._folder).as_posix()}")
        except StorageError as error:
            note(f"dump_xla: what XLA compiled in {self._task} is not stored: {error}")
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        if not files:
            note(
                f"dump_xla: XLA compiled nothing in {self._task}; it compiles what jit_compile=True asks "
                "for, and on GPUs what Keras chooses"
            )
