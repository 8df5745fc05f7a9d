"""TensorBoardWriter: a run's values and params as event files on storage."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from raydist.errors import StorageError
from raydist.planning.assignment import TaskAssignment
from raydist.spec.params import keep_params
from raydist.spec.secrecy import dump_plain_json
from raydist.spec.tasks import TaskType
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import SegmentWriter, next_seq
from raydist.training.reporting import event_protos

PARAMS = ""
TRAIN = "chief/train"
VALIDATION = "chief/validation"
EVALUATOR = "evaluator"
# TensorBoard opens every file, so there must not be thousands: a file holds what came in a twentieth of the
# time so far, but no less than 5 s and no more than a minute.
_MIN_AGE_S = 5.0
_MAX_AGE_S = 60.0
_AGE_SHARE = 0.05
_VALIDATION = "val_"

logger = logging.getLogger(__name__)


class TensorBoardWriter:
    """Writes what the chief or the evaluator reports, as files that are complete and never written again.

    Starts no thread: its owner calls `tick()` about once a second, and `flush()` at the end. `append`
    never waits for storage. A storage that fails costs curves in TensorBoard, never the training.

    Attributes:
      has_histograms: Whether it was given any.
    """

    def __init__(
        self,
        folders: Mapping[str, SegmentWriter[bytes]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes a writer for each folder of event files."""
        self._folders = folders
        # None until each folder has the attempt's START. The first one that TensorBoard meets drops nothing.
        self._restored_step: int | None = None
        self._clock = clock
        self._started_at_s = self._flushed_at_s = clock()
        self._has_failed = False
        self.has_histograms = False

    @classmethod
    def open(
        cls,
        storage: RunStorage,
        assignment: TaskAssignment,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> TensorBoardWriter | None:
        """Goes on after the files that this attempt has; None in a task that writes none."""
        attempt = assignment.attempt
        is_evaluator = assignment.task.task_type is TaskType.EVALUATOR
        if not (is_evaluator or assignment.is_chief):
            return None
        folders = {
            name: SegmentWriter(
                storage,
                segment_key=lambda seq, name=name: storage.tensorboard_segment(  # type: ignore[misc]
                    name, attempt=attempt, seq=seq
                ),
                encode=event_protos.event_file,
                item_bytes=len,
                first_seq=next_seq(
                    storage,
                    storage.tensorboard_folder(name),
                    prefix=storage.tensorboard_prefix(attempt=attempt),
                ),
                clock=clock,
            )
            for name in ((EVALUATOR,) if is_evaluator else (PARAMS, TRAIN, VALIDATION))
        }
        writer = cls(folders, clock=clock)
        if not is_evaluator:
            params = dict(_flat(json.loads(dump_plain_json(keep_params(assignment.job.params)["params"]))))
            start = event_protos.params_start(params, group=assignment.job.name, wall_time=time.time())
            folders[PARAMS].append(start)
        return writer

    def append(
        self,
        values: Mapping[str, float],
        *,
        step: int,
        of_epoch: bool,
        is_running: bool,
        restored_step: int,
        wall_time: float,
    ) -> None:
        """Takes values that hold after `step` steps.

        Args:
          of_epoch: Whether they are of an epoch, or within one; those of a loop or of `ctx.report` are not.
          is_running: Whether they are the chief's own running values.
          restored_step: Where this attempt began. What an earlier one wrote beyond it is dropped.
          wall_time: Unix time, seconds.
        """
        self._restart(restored_step, wall_time)
        by_folder: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            folder_name, tag = self._place(name, of_epoch=of_epoch, is_running=is_running)
            by_folder.setdefault(folder_name, {})[tag] = value
        for folder_name, tagged in by_folder.items():
            event = event_protos.scalars(tagged, step=step, wall_time=wall_time)
            self._folders[folder_name].append(event)

    def append_histograms(
        self, weights: Mapping[str, np.ndarray], *, step: int, restored_step: int, wall_time: float
    ) -> None:
        """Takes the values of weights by name; those that are not finite are in no histogram."""
        self._restart(restored_step, wall_time)
        self.has_histograms = True
        for name, values in weights.items():
            finite = values[np.isfinite(values)]
            if finite.size:
                event = event_protos.histogram(f"{name}/histogram", finite, step=step, wall_time=wall_time)
                self._folders[TRAIN].append(event)

    def append_graph(self, model_json: str, *, step: int, restored_step: int, wall_time: float) -> None:
        """Takes the layers of a model, as Keras writes them."""
        self._restart(restored_step, wall_time)
        self._folders[TRAIN].append(event_protos.layers(model_json, step=step, wall_time=wall_time))

    def _restart(self, restored_step: int, wall_time: float) -> None:
        """Has TensorBoard drop what an earlier attempt wrote beyond `restored_step`, once."""
        if restored_step != self._restored_step:
            # An epoch's last values are written before the checkpoint of the same step.
            first = restored_step + 1 if restored_step else 0
            self._restored_step = restored_step
            for name, folder in self._folders.items():
                if name in (TRAIN, VALIDATION):
                    folder.append(event_protos.restart(step=first, wall_time=wall_time))

    def succeeded(self) -> None:
        """Notes that the run has succeeded, as far as this task knows."""
        if PARAMS in self._folders:
            self._folders[PARAMS].append(event_protos.params_end(wall_time=time.time()))

    def tick(self) -> None:
        """Writes files once it is time; what cannot be written is tried again at the next tick."""
        now_s = self._clock()
        age_s = max(_MIN_AGE_S, min(_MAX_AGE_S, _AGE_SHARE * (now_s - self._started_at_s)))
        if now_s - self._flushed_at_s >= age_s:
            self.flush()

    def waiting(self) -> bytes:
        """Returns the events that wait, for `take_over` of another process."""
        folders = {name: folder.waiting() for name, folder in self._folders.items()}
        return json.dumps({name: [one.hex() for one in events] for name, events in folders.items()}).encode()

    def take_over(self, waiting: bytes) -> None:
        """Takes what waited in a process that has died."""
        for name, events in json.loads(waiting).items():
            self._folders[name].append(*map(bytes.fromhex, events))

    def flush(self) -> None:
        """Writes what waits; keeps it where that cannot be done, which is logged once."""
        self._flushed_at_s = self._clock()
        try:
            for folder in self._folders.values():
                folder.flush(is_hasty=True)
            self._has_failed = False
        except StorageError as error:
            if not self._has_failed:
                logger.warning("event files for TensorBoard are not stored: %s", error)
            self._has_failed = True

    def _place(self, name: str, *, of_epoch: bool, is_running: bool) -> tuple[str, str]:
        """Returns the folder and the tag of a value; both are those of Keras's TensorBoard callback."""
        is_validation = of_epoch and name.startswith(_VALIDATION)
        plain = name.removeprefix(_VALIDATION) if is_validation else name
        if EVALUATOR in self._folders:
            return EVALUATOR, f"epoch_{plain}" if is_validation else name
        if is_running:
            return TRAIN, f"batch_{name}" if of_epoch else name
        return VALIDATION if is_validation else TRAIN, f"epoch_{plain}" if of_epoch else name


def _flat(params: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | float | str]]:
    """Yields params as the HParams plugin takes them: `optimizer.name` for one inside of another."""
    for name, value in params.items():
        match value:
            case dict():
                yield from _flat(value, f"{prefix}{name}.")
            case bool() | int() | float() | str():
                yield f"{prefix}{name}", value
            case _:
                yield f"{prefix}{name}", json.dumps(value)
