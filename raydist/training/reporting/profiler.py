"""Profiler: TensorFlow's profiler over some steps of this task, when `raydist profile` asks for it."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from raydist.errors import StorageError
from raydist.spec.tasks import TaskId
from raydist.storage import profile_mail
from raydist.storage.profile_mail import ProfileAnswer, ProfileRequest
from raydist.storage.run_storage import RunStorage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A request for a profile that has not begun."""

    name: str
    request: ProfileRequest
    until_s: float


@dataclass
class _Running:
    """A profile that is being taken."""

    asked: _Asked
    folder: Path
    step_before: int
    began_at_s: float
    last_step: int
    calls: int = 0
    trace: Any = None  # of the call that runs now


class Profiler:
    """Begins and ends profiles between two calls of a step function, and stores them from another thread.

    Starts no thread: the training thread calls `stepped` after each call, and its owner calls `tick`
    about once a second and `close` at the end. A profile that fails costs a note, never the training.
    """

    def __init__(
        self,
        storage: RunStorage,
        task: TaskId,
        *,
        is_asked: threading.Event,
        note: Callable[[str], None],
        marks_steps: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes where requests are.

        Args:
          is_asked: Set when there may be one.
          note: Tells the user a sentence.
          marks_steps: Whether a profile gets marks of its steps; tf_keras's own `fit` makes them already.
        """
        self._storage = storage
        self._task = task
        self._is_asked = is_asked
        self._note = note
        self._marks_steps = marks_steps
        self._clock = clock
        # Between the two threads. The training thread looks at the first two without the lock.
        self._lock = threading.Lock()
        self._asked: _Asked | None = None
        self._running: _Running | None = None
        self._taken: list[tuple[str, ProfileAnswer, Path | None]] = []  # what is to be stored yet
        self._seen: set[str] = set()  # names of requests
        self._has_failed = False

    def stepped(self, step: int) -> None:
        """Takes note, in the training thread, that no step is under way and `step` steps are completed."""
        if self._asked is None and self._running is None:
            return
        with self._lock:
            running, asked = self._running, self._asked
            if running is not None:
                self._count(running, step)
            elif asked is not None:
                self._asked = None
                if self._clock() <= asked.until_s:
                    self._begin(asked, step)

    def tick(self) -> None:
        """Looks for requests where there are some, and stores finished profiles; tries again what fails."""
        try:
            if self._is_asked.is_set():
                self._is_asked.clear()
                self._take_requests()
            self._store()
            self._has_failed = False
        except StorageError as error:
            if not self._has_failed:
                logger.warning("%s: profiles cannot be asked for or stored now: %s", self._task, error)
            self._has_failed = True

    def close(self, *, has_failed: bool) -> None:
        """Ends a profile with the training, and answers the request for it. `tick` is not called again."""
        with self._lock:
            if (running := self._running) is not None and has_failed:
                self._running = None
                self._discard(running)
                self._answer(running.asked.name, "failed before the last step of the profile")
            elif running is not None:
                self._end(running)
            if (asked := self._asked) is not None:
                self._asked = None
                self._answer(asked.name, "ended before it took a step")
        self.tick()

    def _take_requests(self) -> None:
        for name, request in profile_mail.read_requests(self._storage, self._task).items():
            if name in self._seen:
                continue
            self._seen.add(name)
            with self._lock:
                now_s = self._clock()
                if self._asked is not None and now_s > self._asked.until_s:
                    self._asked = None  # the command that wrote it has given up
                if self._asked is not None or self._running is not None:
                    self._answer(name, "is being profiled already; ask again once that profile is kept")
                else:
                    self._asked = _Asked(name=name, request=request, until_s=now_s + request.timeout_s)

    def _begin(self, asked: _Asked, step: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix="raydist-profile-"))
        running = _Running(
            asked=asked, folder=folder, step_before=step, began_at_s=self._clock(), last_step=step
        )
        try:
            tf.profiler.experimental.start(str(folder))
        except Exception as error:  # of any kind: the training continues
            shutil.rmtree(folder, ignore_errors=True)
            self._fail(asked.name, error)
            return
        self._running = running
        self._mark(running)

    def _count(self, running: _Running, step: int) -> None:
        if step <= running.last_step:
            return  # an epoch's end, or a report
        running.last_step = step
        running.calls += 1
        self._unmark(running)
        if step - running.step_before >= running.asked.request.steps:
            self._end(running)
        elif self._clock() > running.asked.until_s:
            self._running = None  # the command that wrote the request has given up
            self._discard(running)
        else:
            self._mark(running)

    def _mark(self, running: _Running) -> None:
        if self._marks_steps:
            # `_r=1` makes it a step for the tools that read the profile.
            running.trace = tf.profiler.experimental.Trace("train", step_num=running.last_step + 1, _r=1)
            running.trace.__enter__()

    def _unmark(self, running: _Running) -> None:
        if running.trace is not None:
            running.trace.__exit__(None, None, None)
            running.trace = None

    def _end(self, running: _Running) -> None:
        self._running = None
        seconds = self._clock() - running.began_at_s
        self._unmark(running)
        if running.calls == 0:
            self._discard(running)
            self._answer(
                running.asked.name, "took no step after the profile had begun: its training has ended"
            )
            return
        try:
            tf.profiler.experimental.stop()
            if not any(running.folder.rglob("*.xplane.pb")):
                raise RuntimeError("it wrote no profile")  # its own error is in the log
        except Exception as error:
            shutil.rmtree(running.folder, ignore_errors=True)
            self._fail(running.asked.name, error)
            return
        num_steps = running.last_step - running.step_before
        answer = ProfileAnswer(
            first_step=running.step_before + 1,
            last_step=running.last_step,
            calls=running.calls,
            seconds=seconds,
            is_cut=num_steps < running.asked.request.steps,
        )
        self._taken.append((running.asked.name, answer, running.folder))

    def _discard(self, running: _Running) -> None:
        self._unmark(running)
        try:
            tf.profiler.experimental.stop(save=False)
        except Exception as error:  # somebody else has ended it
            logger.warning("%s: the profiler cannot be stopped: %s", self._task, error)
        shutil.rmtree(running.folder, ignore_errors=True)

    def _fail(self, name: str, error: Exception) -> None:
        sentence = f"could not be profiled: TensorFlow's profiler failed with {type(error).__name__}: {error}"
        self._note(f"{self._task} {sentence}")
        self._answer(name, sentence)

    def _answer(self, name: str, error: str) -> None:
        self._taken.append((name, ProfileAnswer(error=error), None))

    def _store(self) -> None:
        while self._taken:
            name, answer, folder = self._taken[0]
            if folder is not None:
                answer = self._stored(answer, folder)
            profile_mail.write_answer(self._storage, self._task, name, answer)
            with self._lock:
                self._taken.pop(0)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _stored(self, answer: ProfileAnswer, folder: Path) -> ProfileAnswer:
        """Stores what TensorFlow has written where TensorBoard's profile plugin looks for it."""
        target = self._storage.tensorboard_task(self._task)
        files = self._storage.upload_folder(folder, target)
        [profile] = {path.parent for path in files if path.name.endswith(".xplane.pb")}
        uri = self._storage.uri(f"{target}/{profile.relative_to(folder).as_posix()}")
        return dataclasses.replace(answer, profile=uri)
