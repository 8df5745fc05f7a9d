"""What a task knows of its own progress, and what it has been asked for, shared between its threads.

The training thread writes progress and looks at commands; the status thread reads the one and sets the other.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from typing import Any

from raydist.outcome.printed import OutputSpan
from raydist.outcome.status import (
    Collective,
    Command,
    Report,
    TaskFailure,
    TaskMessage,
    TaskPace,
    TaskState,
    TaskStatus,
    Training,
    WorkerAddresses,
)
from raydist.outcome.value import MAX_BYTES, NotKeptError, encode_value
from raydist.spec.best import best_of
from raydist.spec.quantities import write_bytes
from raydist.spec.secrecy import dump_plain_json
from raydist.spec.tasks import TaskId
from raydist.spec.text import without_colours


class Commands:
    """Commands that have come in. Taken by any thread.

    Attributes:
      save: Set while a checkpoint is asked for. `is_last_save`: set once training ends with it.
      finish: Set once training is done, for an evaluator; for the chief once the evaluator was given up.
      profile: Set while there may be a request for a profile on storage.
      workers: For the chief of parameter servers: where the workers are.
    """

    def __init__(self) -> None:
        self.save = threading.Event()
        self.is_last_save = threading.Event()
        self.finish = threading.Event()
        self.profile = threading.Event()
        self.workers: queue.SimpleQueue[WorkerAddresses] = queue.SimpleQueue()
        self._events = {
            Command.SAVE: self.save,
            Command.FINISH: self.finish,
            Command.PROFILE: self.profile,
        }

    def take(self, message: TaskMessage) -> bool:
        """Takes a message in; returns whether it is one for the train function."""
        if isinstance(message, WorkerAddresses):
            self.workers.put(message)
            return True
        if message is Command.SAVE_LAST:
            self.is_last_save.set()
            message = Command.SAVE
        if message in self._events:
            self._events[message].set()
        return message in self._events


# A train function may call `fit` for each of thousands of epochs. The status holds so many, and a curve
# shows no more of them either.
_MAX_TRAININGS = 100
_NOT_KEPT = "what the train function returned is not kept"
_KEPT = (
    "result.value takes numbers, text, lists, tuples, dicts and NumPy arrays, together up to "
    f"{write_bytes(MAX_BYTES)}"
)
# A status holds so many reports, which is enough for epochs that take 20 ms.
_MAX_REPORTS = 32


class TaskProgress:
    """Holds one task's status. Every method may be called from any thread.

    Attributes:
      collective: What the task has begun together with all other workers. It is set for each call of steps,
        so without a lock.
    """

    def __init__(
        self, task: TaskId, *, host: str | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        status = TaskStatus(
            task=task, state=TaskState.STARTING, pid=os.getpid(), host=host or socket.gethostname()
        )
        # Those of the status: to copy the whole of it for each step and report was half of their time.
        self._fields: dict[str, Any] = {one.name: getattr(status, one.name) for one in fields(status)}
        self._settle_first: Callable[[], None] = lambda: None
        self._reports: deque[Report] = deque(maxlen=_MAX_REPORTS)
        self._rate_step = 0
        self._rate_at_s: float | None = None
        self._resumable_step = 0
        self._log_fd: int | None = None
        self._output: OutputSpan | None = None
        self.collective: Collective | None = None

    @contextmanager
    def prints_output(self) -> Iterator[None]:
        """Tells where the log has what is printed in the block, by any code of the process."""
        flush_output()
        with self._lock:
            self._log_fd = os.dup(1)
            start = os.fstat(self._log_fd).st_size
            self._output = OutputSpan(start=start, end=start)
        try:
            yield
        finally:
            flush_output()
            with self._lock:
                span = self._output_so_far()
                self._output = span and replace(span, is_over=True)
                os.close(self._log_fd)
                self._log_fd = None

    def _output_so_far(self) -> OutputSpan | None:
        """Returns where the script's output is; the caller holds the lock, so that nothing else is in it."""
        if self._output is not None and self._log_fd is not None:
            self._output = replace(self._output, end=os.fstat(self._log_fd).st_size)
        return self._output

    def settle_first(self, settle: Callable[[], None]) -> None:
        """Takes what `settle` calls, which may call the other methods."""
        self._settle_first = settle

    def settle(self) -> None:
        """Has what was handed in noted, before anything is read or stored."""
        self._settle_first()

    def status(self) -> TaskStatus:
        """Returns the status as of now, with the rate of steps since the last call that saw new ones."""
        self.settle()
        with self._lock:
            now, step = self._clock(), self._fields["step"]
            if self._rate_at_s is not None and step > self._rate_step and now > self._rate_at_s:
                self._fields["steps_per_s"] = (step - self._rate_step) / (now - self._rate_at_s)
                self._rate_step, self._rate_at_s = step, now
            self._fields |= {
                "at_s": now,
                "reports": tuple(self._reports),
                "collective": self.collective,
                "output": self._output_so_far(),
            }
            return TaskStatus(**self._fields)

    def _change(self, **changes: Any) -> None:
        with self._lock:
            self._fields |= changes

    def set_state(self, state: TaskState, *, address: str | None = None) -> None:
        self._change(state=state, **({"address": address} if address else {}))

    def set_joining(self, is_joining: bool) -> None:
        """Notes whether the script may wait for its peers now, which holds up all threads of the process."""
        self._change(is_joining=is_joining)

    def set_saves_by_itself(self) -> None:
        """Notes that the program has a handler of preemptions."""
        self._change(saves_by_itself=True)

    def distributed(self, *, divides: bool) -> None:
        """Notes that data workers make a dataset, and whether each of them makes a part of it only."""
        with self._lock:
            self._fields["divides_data"] = divides or bool(self._fields["divides_data"])

    def has_trained(self) -> bool:
        """Whether any step was completed, or any value reported."""
        self.settle()
        with self._lock:
            return self._fields["step"] > 0 or bool(self._fields["metrics"])

    def restored(self, step: int) -> None:
        self.settle()  # what was reported before it belongs to what was before it
        with self._lock:
            self._fields |= {"step": step, "restored_step": step}
            self._rate_step, self._rate_at_s = step, None
            self._resumable_step = step

    @property
    def restored_step(self) -> int:
        """The step that this attempt continues from; 0 without a checkpoint."""
        step: int = self._fields["restored_step"]
        return step

    def expect(self, *, num_steps: int | None = None, num_epochs: int | None = None) -> None:
        self._change(num_steps=num_steps, num_epochs=num_epochs)

    def completed(
        self,
        step: int,
        *,
        epoch: int | None = None,
        local_metrics: Mapping[str, float] | None = None,
        is_resumable: bool = True,
    ) -> None:
        """Notes that the run has completed `step` steps and `epoch` epochs.

        Args:
          is_resumable: False for steps that a new attempt would repeat: no checkpoint holds them.
        """
        with self._lock:
            if is_resumable:
                self._resumable_step = max(step, self._resumable_step)
            if self._rate_at_s is None and step > self._fields["restored_step"]:
                self._rate_step, self._rate_at_s = step, self._clock()
                if self._fields["first_step_at_s"] is None:
                    self._fields |= {"first_step_at_s": self._rate_at_s, "first_step": step}
            self._fields["step"] = max(step, self._fields["step"])
            if epoch is not None:
                self._fields["epoch"] = epoch
            if local_metrics is not None:
                self._fields["local_metrics"] = dict(local_metrics)

    def reported(
        self,
        metrics: Mapping[str, float],
        *,
        step: int,
        epoch: int | None = None,
        keep_best: str | None = None,
    ) -> None:
        """Notes values that hold after `step` steps; `keep_best` is the metric to find the best value of."""
        with self._lock:
            number = self._reports[-1].number + 1 if self._reports else 1
            if epoch is None and self._reports and self._reports[-1].epoch is None:
                self._reports.pop()  # a loop may report each step
            self._reports.append(Report(number=number, step=step, epoch=epoch, metrics=dict(metrics)))
            best = best_of(self._fields["best"], metrics, step=step, keep_best=keep_best)
            self._fields |= {"metrics": dict(metrics), "best": best}

    def paced(self, pace: TaskPace) -> None:
        """Notes how fast this task trains, and what its steps wait for."""
        self._change(pace=pace)

    def workers_paced(self, sums: Sequence[tuple[float, int]]) -> None:
        """Notes the seconds that each worker of parameter servers was busy, and its steps in that time."""
        self._change(worker_paces=tuple(TaskPace(at_s=seconds, steps=steps) for seconds, steps in sums))

    def committed(self, checkpoint_uri: str) -> None:
        self._change(checkpoint=checkpoint_uri)
        self.beat()

    def repeated(self, num_steps: int) -> None:
        """Notes how many steps were applied twice so far, because a worker died with them half done."""
        self._change(steps_repeated=num_steps)

    def evaluated(self, step: int, *, lag_steps: int) -> None:
        """Notes that the checkpoint of `step` was evaluated, when training was `lag_steps` ahead."""
        self._change(step=step, lag_steps=lag_steps)

    def beat(self) -> None:
        """Notes that the task makes progress where no step shows it."""
        with self._lock:
            self._fields["beats"] += 1

    def note(self, sentence: str) -> None:
        """Adds a sentence about what was chosen on the user's behalf, once."""
        sentence = without_colours(sentence)
        with self._lock:
            if sentence not in self._fields["notes"]:
                self._fields["notes"] += (sentence,)

    def returned(self, value: object, *, hide: Callable[[str], str]) -> None:
        """Keeps what the train function has returned, or notes why it cannot be kept.

        Args:
          hide: Returns a text without the run's secrets.
        """
        try:
            # Secrets are taken out as in run.json, so that every way to the value gives the same one.
            kept = json.loads(dump_plain_json(encode_value(value, hide=hide)))
        except NotKeptError as error:
            self.note(hide(f"{_NOT_KEPT}, as {error}; {_KEPT}"))
        except Exception as error:  # of an object of the user's, or a tensor that is no more
            self.note(hide(f"{_NOT_KEPT}, as reading it raised {type(error).__name__}: {error}; {_KEPT}"))
        else:
            self._change(value=kept)

    def training_begins(self, kind: str, *, number: int, step: int) -> None:
        """Notes that a `Training` begins at its first step; of very many, the first ones."""
        training = Training(kind=kind, number=number, step=step)
        with self._lock:
            if len(self._fields["trainings"]) < _MAX_TRAININGS:
                self._fields["trainings"] += (training,)

    def failed(self, failure: TaskFailure) -> None:
        """Notes the failure, at the step that a new attempt may get beyond."""
        self.settle()
        failure = replace(failure, step=self._resumable_step, at_s=self._clock())
        self._change(state=TaskState.FAILED, failure=failure)


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        # The script may have closed it, or put anything in its place.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]


def say(sentence: str) -> None:
    """Writes a line into the task's log, and not into what the job has put in the place of sys.stdout."""
    flush_output()
    begin = "\n" if _is_in_a_line() else ""
    with suppress(OSError, ValueError):  # the job has closed or detached it
        print(f"{begin}raydist: {sentence}", file=sys.__stdout__, flush=True)


def _is_in_a_line() -> bool:
    """Whether what was printed last has no end of line, as a progress bar that is being drawn."""
    try:
        with open("/proc/self/fd/1", "rb") as log:
            log.seek(-1, os.SEEK_END)
            return log.read(1) != b"\n"
    except OSError:  # empty, or no file
        return False
