"""TensorBoardWriter: a run's values and params as event files on storage, made with TensorFlow alone."""

from __future__ import annotations

import functools
import json
import logging
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from raydist.errors import StorageError
from raydist.planning.assignment import TaskAssignment
from raydist.spec.params import keep_params
from raydist.spec.secrecy import dump_plain_json
from raydist.spec.tasks import TaskType
from raydist.storage.run_storage import RunStorage
from raydist.storage.segments import SegmentWriter, next_seq

logger = logging.getLogger(__name__)

# tensorboard/plugins/hparams/metadata.py and plugin_data.proto.
_PARAMS_PLUGIN = "hparams"
_START_TAG, _START_FIELD = "_hparams_/session_start_info", 3
_END_TAG, _END_FIELD = "_hparams_/session_end_info", 4
_SUCCESS = 1
_BYTES, _FIXED64, _VARINT = 2, 1, 0  # protobuf's wire types


def event_file(events: Sequence[bytes]) -> bytes:
    """Returns a whole event file with these events; files can be appended to each other."""
    version = tf.compat.v1.Event(file_version="brain.Event:2").SerializeToString()
    with tempfile.TemporaryDirectory(prefix="raydist-events-") as folder:
        path = Path(folder) / "events"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for event in (version, *events):
                writer.write(event)
        return path.read_bytes()


def scalars(values: Mapping[str, float], *, step: int, wall_time: float) -> bytes:
    """Returns the event of a step's values by their tags."""
    summary = tf.compat.v1.Summary(
        value=[{"tag": tag, "simple_value": value} for tag, value in values.items()]
    )
    return tf.compat.v1.Event(step=step, wall_time=wall_time, summary=summary).SerializeToString()


def restart(*, step: int, wall_time: float) -> bytes:
    """Returns the event that makes TensorBoard drop what it has of `step` and later."""
    log = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    return tf.compat.v1.Event(step=step, wall_time=wall_time, session_log=log).SerializeToString()


def params_start(params: Mapping[str, bool | float | str], *, group: str, wall_time: float) -> bytes:
    """Returns the event by which the HParams plugin knows a run's params; runs of one `group` are trials."""
    entries = [
        _field(1, _field(1, name.encode()) + _field(2, _value(value))) for name, value in params.items()
    ]
    info = b"".join(entries) + _field(4, group.encode()) + _double(5, wall_time)
    return _params_event(_START_TAG, _field(_START_FIELD, info), wall_time)


def params_end(*, wall_time: float) -> bytes:
    """Returns the event by which the HParams plugin knows that a run succeeded."""
    info = bytes([1 << 3 | _VARINT, _SUCCESS]) + _double(2, wall_time)
    return _params_event(_END_TAG, _field(_END_FIELD, info), wall_time)


def _params_event(tag: str, content: bytes, wall_time: float) -> bytes:
    metadata = {"plugin_data": {"plugin_name": _PARAMS_PLUGIN, "content": content}}
    nothing = tf.make_tensor_proto(0, dtype=tf.float32, shape=(0,))
    summary = tf.compat.v1.Summary(value=[{"tag": tag, "metadata": metadata, "tensor": nothing}])
    return tf.compat.v1.Event(step=0, wall_time=wall_time, summary=summary).SerializeToString()


def _value(value: bool | float | str) -> bytes:
    match value:
        case bool():
            return bytes([4 << 3 | _VARINT, value])
        case str():
            return _field(3, value.encode())
        case _:
            return _double(2, value)


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _BYTES]) + _varint(len(content)) + content


def _double(number: int, value: float) -> bytes:
    return bytes([number << 3 | _FIXED64]) + struct.pack("<d", value)


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


PARAMS = ""
TRAIN = "chief/train"
VALIDATION = "chief/validation"
EVALUATOR = "evaluator"
_VALIDATION = "val_"


class TensorBoardWriter:
    """Writes what the chief or the evaluator reports, as files that grow.

    Starts no thread: its owner calls `tick()` about once a second, and `flush()` at the end. `append`
    never waits for storage. A storage that fails costs curves in TensorBoard, never the training.
    """

    def __init__(
        self,
        folders: Mapping[str, SegmentWriter[bytes]],
    ) -> None:
        """Takes a writer for each folder of event files."""
        self._folders = folders
        # None until each folder has the attempt's START. The first one that TensorBoard meets drops nothing.
        self._restored_step: int | None = None
        self._has_failed = False

    @classmethod
    def open(
        cls,
        storage: RunStorage,
        assignment: TaskAssignment,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> TensorBoardWriter | None:
        """Continues after the files that this attempt has; None in a task that writes none."""
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
                encode=event_file,
                item_bytes=len,
                first_seq=next_seq(
                    storage,
                    storage.tensorboard_folder(name),
                    prefix=storage.tensorboard_prefix(attempt=attempt),
                ),
                is_appended=True,  # TensorBoard keeps a file open
                clock=clock,
            )
            for name in ((EVALUATOR,) if is_evaluator else (PARAMS, TRAIN, VALIDATION))
        }
        writer = cls(folders)
        if not is_evaluator:
            params = dict(_flat(json.loads(dump_plain_json(keep_params(assignment.job.params)["params"]))))
            start = params_start(params, group=assignment.job.name, wall_time=time.time())
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
            event = scalars(tagged, step=step, wall_time=wall_time)
            self._folders[folder_name].append(event)

    def _restart(self, restored_step: int, wall_time: float) -> None:
        """Has TensorBoard drop what an earlier attempt wrote beyond `restored_step`, once."""
        if restored_step != self._restored_step:
            # An epoch's last values are written before the checkpoint of the same step.
            first = restored_step + 1 if restored_step else 0
            self._restored_step = restored_step
            for name, folder in self._folders.items():
                if name in (TRAIN, VALIDATION):
                    folder.append(restart(step=first, wall_time=wall_time))

    def succeeded(self) -> None:
        """Notes that the run has succeeded, as far as this task knows."""
        if PARAMS in self._folders:
            self._folders[PARAMS].append(params_end(wall_time=time.time()))

    def tick(self) -> None:
        """Writes what is 5 s old; what cannot be written is tried again at the next tick."""
        self._write(SegmentWriter.tick)

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
        self._write(functools.partial(SegmentWriter.flush, is_hasty=True))

    def _write(self, write: Callable[[SegmentWriter[bytes]], None]) -> None:
        try:
            for folder in self._folders.values():
                write(folder)
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
