"""LogCapture: everything a task's process prints, Python or native, goes to its log."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from raydist.errors import StorageError
from raydist.runtime.host.scratch import spool_path
from raydist.spec.tasks import AnyTask
from raydist.storage.log_times import ArrivalTimes

if TYPE_CHECKING:
    from raydist.storage.logs import LogUploader

logger = logging.getLogger(__name__)

TICK_S = 1.0
# How exactly the logs of tasks can be merged by time.
TIMES_EVERY_S = 0.25
# The first upload imports pyarrow, which would compete with the first training steps.
FIRST_TICK_AFTER_S = 3.0


@dataclass(frozen=True, kw_only=True)
class LogTarget:
    """Where one task's log goes.

    Attributes:
      storage_uri: The storage that holds the runs, as the user gave it but absolute.
      run: The run's name.
      incarnation: How often the task was replaced in this attempt; the readers join what all of them printed.
    """

    storage_uri: str
    run: str
    task: AnyTask
    attempt: int
    incarnation: int = 0

    def open_uploader(self, scratch_path: Path, *, times: ArrivalTimes | None = None) -> LogUploader:
        """Opens storage for the spool in a task's scratch folder; continues where an earlier one ended.

        Args:
          times: Notes when the spool grows; None for what is kept beside the spool.
        """
        from raydist.storage.logs import LogUploader
        from raydist.storage.run_storage import open_run

        return LogUploader(
            open_run(self.storage_uri, run=self.run),
            task=self.task,
            attempt=self.attempt,
            incarnation=self.incarnation,
            spool_path=spool_path(scratch_path),
            times=times,
        )


class LogCapture:
    """Sends file descriptors 1 and 2 to the spool, and uploads the spool in the background."""

    def __init__(self, scratch_path: Path, target: LogTarget) -> None:
        self._scratch_path = scratch_path
        self._target = target
        self._times = ArrivalTimes(spool_path(scratch_path))
        self._uploader: LogUploader | None = None
        self._uploader_lock = threading.Lock()
        self._has_warned = False
        self._closed = threading.Event()

    def redirect(self) -> None:
        """Points this process's output at the spool: Ray's own log files stay as they are."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        spool_fd = os.open(spool_path(self._scratch_path), flags, 0o600)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(spool_fd, 1)
        os.dup2(spool_fd, 2)
        os.close(spool_fd)

    def start_uploading(self) -> None:
        """Starts the daemon thread that uploads what is new, every few seconds."""
        threading.Thread(target=self._upload_regularly, name="raydist-log-upload", daemon=True).start()

    def flush(self) -> str | None:
        """Uploads everything printed so far; returns why that could not be done, or None.

        A storage that fails costs the log, never the training.
        """
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError as error:  # a full disk
            return f"cannot write {spool_path(self._scratch_path)}: {error.strerror}"
        return self._upload(is_final=True)

    def close(self) -> None:
        """Uploads no more. Idempotent."""
        self._closed.set()

    def _upload_regularly(self) -> None:
        tick_at_s = time.monotonic() + FIRST_TICK_AFTER_S
        while not self._closed.wait(TIMES_EVERY_S):
            with contextlib.suppress(OSError):  # a full disk, which the upload reports
                self._times.note()
            if time.monotonic() >= tick_at_s:
                self._upload(is_final=False)
                tick_at_s = time.monotonic() + TICK_S

    def _upload(self, *, is_final: bool) -> str | None:
        try:
            uploader = self._open_once()
            if is_final:
                uploader.flush()
            else:
                uploader.tick()
        except StorageError as error:
            if not self._has_warned:
                self._has_warned = True
                logger.warning("%s: log is not uploaded: %s", self._target.task, error)
            return str(error)
        return None

    def _open_once(self) -> LogUploader:
        with self._uploader_lock:
            if self._uploader is None:
                self._uploader = self._target.open_uploader(self._scratch_path, times=self._times)
            return self._uploader
