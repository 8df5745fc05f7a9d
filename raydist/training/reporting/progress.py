"""What a task knows of its own progress: written by the training thread, read by the status thread."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from raydist.spec.best import best_of
from raydist.spec.status import TaskFailure, TaskState, TaskStatus
from raydist.spec.tasks import TaskId


class TaskProgress:
    """Holds one task's status. Every method may be called from any thread."""

    def __init__(
        self, task: TaskId, *, host: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._status = TaskStatus(
            task=task, state=TaskState.STARTING, pid=os.getpid(), host=host or socket.gethostname()
        )
        self._rate_step = 0
        self._rate_at_s: float | None = None
        self._resumable_step = 0

    def status(self) -> TaskStatus:
        """Returns the status as of now, with the rate of steps since the last call that saw new ones."""
        with self._lock:
            now = self._clock()
            status = self._status
            if self._rate_at_s is not None and status.step > self._rate_step and now > self._rate_at_s:
                rate = (status.step - self._rate_step) / (now - self._rate_at_s)
                self._status = status = replace(status, steps_per_s=rate)
                self._rate_step, self._rate_at_s = status.step, now
            return replace(status, at_s=now)

    def set_state(self, state: TaskState, *, address: str | None = None) -> None:
        with self._lock:
            self._status = replace(self._status, state=state, address=address or self._status.address)

    def set_joining(self, is_joining: bool) -> None:
        """Notes whether the script may wait for its peers now, which holds up all threads of the process."""
        with self._lock:
            self._status = replace(self._status, is_joining=is_joining)

    def has_trained(self) -> bool:
        """Whether any step was completed, or any value reported."""
        with self._lock:
            return self._status.step > 0 or bool(self._status.metrics)

    def restored(self, step: int) -> None:
        """Notes that this attempt goes on from `step`."""
        with self._lock:
            self._status = replace(self._status, step=step, restored_step=step)
            self._rate_step, self._rate_at_s = step, None
            self._resumable_step = step

    @property
    def restored_step(self) -> int:
        """The step that this attempt goes on from; 0 without a checkpoint."""
        return self._status.restored_step

    def expect(self, *, num_steps: int | None = None, num_epochs: int | None = None) -> None:
        with self._lock:
            self._status = replace(self._status, num_steps=num_steps, num_epochs=num_epochs)

    def completed(
        self, step: int, *, epoch: int | None = None, local_metrics: Mapping[str, float] | None = None
    ) -> None:
        """Notes that the run has completed `step` steps and `epoch` epochs."""
        with self._lock:
            self._resumable_step = max(step, self._resumable_step)
            self._complete(step, epoch, local_metrics)

    def counted(
        self, step: int, *, epoch: int | None = None, local_metrics: Mapping[str, float] | None = None
    ) -> None:
        """As `completed`, of steps that a new attempt would repeat: no checkpoint holds them."""
        with self._lock:
            self._complete(step, epoch, local_metrics)

    def _complete(self, step: int, epoch: int | None, local_metrics: Mapping[str, float] | None) -> None:
        status, now = self._status, self._clock()
        if status.first_step_at_s is None and step > status.restored_step:
            status = replace(status, first_step_at_s=now)
            self._rate_step, self._rate_at_s = step, now
        self._status = replace(
            status,
            step=max(step, status.step),
            epoch=status.epoch if epoch is None else epoch,
            local_metrics=status.local_metrics if local_metrics is None else dict(local_metrics),
        )

    def reported(self, metrics: Mapping[str, float], *, step: int, keep_best: str | None = None) -> None:
        """Notes values that hold after `step` steps; `keep_best` is the metric to find the best value of."""
        with self._lock:
            best = best_of(self._status.best, metrics, step=step, keep_best=keep_best)
            self._status = replace(self._status, metrics=dict(metrics), best=best)

    def committed(self, checkpoint_uri: str) -> None:
        with self._lock:
            status = self._status
            self._status = replace(status, checkpoint=checkpoint_uri, beats=status.beats + 1)

    def repeated(self, num_steps: int) -> None:
        """Notes how many steps were applied twice so far, because a worker died with them half done."""
        with self._lock:
            self._status = replace(self._status, steps_repeated=num_steps)

    def evaluated(self, step: int, *, lag_steps: int) -> None:
        """Notes that the checkpoint of `step` was evaluated, when training was `lag_steps` ahead."""
        with self._lock:
            self._status = replace(self._status, step=step, lag_steps=lag_steps)

    def beat(self) -> None:
        """Notes that the task goes on, where no step tells it."""
        with self._lock:
            self._status = replace(self._status, beats=self._status.beats + 1)

    def note(self, sentence: str) -> None:
        """Adds a sentence about what was chosen on the user's behalf, once."""
        with self._lock:
            if sentence not in self._status.notes:
                self._status = replace(self._status, notes=(*self._status.notes, sentence))

    def failed(self, failure: TaskFailure) -> None:
        """Notes the failure, at the step that a new attempt may get beyond."""
        with self._lock:
            failure = replace(failure, step=self._resumable_step, at_s=self._clock())
            self._status = replace(self._status, state=TaskState.FAILED, failure=failure)
