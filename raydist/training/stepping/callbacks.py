"""Callbacks of a `fit` that several workers run: what writes, writes in the chief; all decide the same.

CallbackCalls calls them from a training loop that is not Keras's.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from raydist.errors import UnsupportedError
from raydist.training.cluster import collectives, default_strategy
from raydist.training.cluster.collectives import worker_names
from raydist.training.reporting import reporter
from raydist.training.stepping.backups import replace_whole
from raydist.training.stepping.hooks import Hooks, in_run_order, users_of
from raydist.training.stepping.packing import BatchHook, batch_hook_of, watches_batches
from raydist.training.user_code.bytecode import may_reach_model, may_read_after
from raydist.training.user_code.code_names import is_keras, keras_kinds


class CallbackCalls:
    """Calls the hooks of callbacks of either Keras, in their order.

    tf_keras's own CallbackList refuses hooks for batches under ParameterServerStrategy.
    """

    def __init__(
        self, model: Any, callbacks: Sequence[Any], *, history: Any, params: Mapping[str, Any]
    ) -> None:
        """Takes the callbacks in their order; `history` comes last, so that it has what they add to logs."""
        self._callbacks = callbacks = [*callbacks, history]
        model.stop_training = False
        model.history = history
        for callback in callbacks:
            callback.set_model(model)
            callback.set_params(dict(params))

    def call(self, hook: str, *args: Any) -> None:
        """Calls a hook, such as `on_epoch_end`, of each callback."""
        for callback in self._callbacks:
            getattr(callback, hook)(*args)


# By class: the attributes that say where it writes. Those that read first get theirs once `fit` has begun.
_WRITES = {"CSVLogger": ("filename",), "TensorBoard": ("log_dir",)}
_READS_THEN_WRITES = {
    "ModelCheckpoint": ("filepath",),
    "BackupAndRestore": (
        *("backup_dir", "_weights_path", "_training_metadata_path"),
        *("_prev_weights_path", "_prev_training_metadata_path"),
    ),
}
# What they do at a batch is the same in every worker, and ends no training.
_UNDECIDED = ("CSVLogger", "TensorBoard", "ModelCheckpoint", "BackupAndRestore", "ProgbarLogger", "History")


def prepared(callbacks: Sequence[Any], base: type, strategy: Any) -> list[Any]:
    """Returns the callbacks that a `fit` runs in this worker, with raydist's own that agrees among them.

    Args:
      callbacks: In the order in which they run.

    Raises:
      UnsupportedError: One of them can only write in every worker.
    """
    users = users_of(callbacks)
    left_out = {id(one) for one in _restoring_twice(users, callbacks)}
    current = reporter.current()
    for one in users:
        is_kept = "BackupAndRestore" in keras_kinds(one) and id(one) not in left_out
        if is_kept and (current is None or current.is_chief):
            replace_whole(one)  # before the workers compare their files
    if current is None or collectives.is_alone(strategy):
        return [one for one in callbacks if id(one) not in left_out]
    for one in users:
        if "OrbaxCheckpoint" in keras_kinds(one):
            raise UnsupportedError(
                "OrbaxCheckpoint writes in every worker to one folder; use ModelCheckpoint, or ctx.fit's own "
                "checkpoints"
            )
    scratch = None
    aside = _writing_aside([one for one in users if id(one) not in left_out])
    if not current.is_chief:
        left_out |= {id(one) for one in users if _is_of_chief_alone(one)}
        scratch = CallbackScratch([one for one in aside if id(one) not in left_out])
    kept = [one for one in callbacks if id(one) not in left_out]
    backups = [one for one in users if "BackupAndRestore" in keras_kinds(one) and id(one) not in left_out]
    # A callback that only some workers have is one of all in what they have to agree on.
    own_needs = [
        any(_may_decide_at_batch(one, base) and not _is_of_chief_alone(one) for one in users),
        any(_reads_batch_logs(one, base) for one in users),
        bool(backups),
    ]
    decides, reads_logs, has_backup = (
        any(column) for column in zip(*_gather(strategy, own_needs), strict=True)
    )
    if has_backup:
        _check_files(strategy, [one.backup_dir for one in backups])
    own = _Lockstep(
        strategy=strategy, scratch=scratch, decides=decides, reads_logs=reads_logs, has_backup=has_backup
    )
    return in_run_order([*kept, own])


def reads_batch_logs(callbacks: Sequence[Any], base: type, strategy: Any) -> bool:
    """Whether a callback in any worker reads the logs of training batches.

    All workers must see the same logs, because a callback may stop training or change the learning rate.

    Args:
      callbacks: As `prepared` returns them.
    """
    lockstep = next((one for one in callbacks if isinstance(one, _Lockstep)), None)
    if lockstep is not None:
        return lockstep.reads_logs
    return collectives.is_alone(strategy) and any(_reads_batch_logs(one, base) for one in callbacks)


def _writing_aside(callbacks: Sequence[Any]) -> list[Any]:
    """Returns those that do not write where they were told to in this worker.

    All, but in a job that builds no strategy: there a collective says which.
    """
    if not default_strategy.builds_none():
        return list(callbacks)
    places = {**_WRITES, **_READS_THEN_WRITES}
    paths = [
        (one, path)
        for one in callbacks
        for name in [name for kind in keras_kinds(one) for name in places.get(kind, ())[:1]][:1]
        if isinstance(path := getattr(one, name, None), (str, Path))
    ]
    written = default_strategy.written_here([path for _, path in paths])
    own = {id(one) for (one, _), is_written in zip(paths, written, strict=True) if is_written}
    return [one for one in callbacks if id(one) not in own]


class CallbackScratch:
    """Where the callbacks of a worker that is not the chief write: a folder that `close` removes."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = callbacks
        self._folder = Path(tempfile.mkdtemp(prefix="raydist-callbacks-"))
        self._changes = contextlib.ExitStack()
        self._redirect(_WRITES, self._folder)
        for one in callbacks:
            if "RemoteMonitor" in keras_kinds(one) and is_keras(type(one).on_epoch_end):
                self._set(one, "on_epoch_end", lambda epoch, logs=None: None)

    def begin(self) -> None:
        """Redirects those that have read by now what the chief's have written before."""
        self._redirect(_READS_THEN_WRITES, self._saved)
        for one in self._callbacks:
            state = getattr(one, "_training_state", None)  # of tf_keras's BackupAndRestore
            if state is not None and state.write_checkpoint_manager is state.read_checkpoint_manager:
                state.write_checkpoint_manager = tf.train.CheckpointManager(
                    state.read_checkpoint_manager.checkpoint, tempfile.mkdtemp(dir=self._folder), 1
                )

    def clean(self) -> None:
        """Removes the models that were saved since the last time."""
        shutil.rmtree(self._saved, ignore_errors=True)

    def close(self) -> None:
        """Gives the callbacks their own places back, and removes the folder."""
        self._changes.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _saved(self) -> Path:
        return self._folder / "saved"

    def _redirect(self, attributes: Mapping[str, tuple[str, ...]], folder: Path) -> None:
        for number, callback in enumerate(self._callbacks):
            place = folder / str(number)
            for kind in keras_kinds(callback):
                for name in attributes.get(kind, ()):
                    if isinstance(value := getattr(callback, name, None), (str, Path)):
                        place.mkdir(parents=True, exist_ok=True)
                        # Its name may have fields for the epoch and the logs.
                        self._set(callback, name, str(place / Path(value).name))

    def _set(self, callback: Any, name: str, value: Any) -> None:
        was_own, before = name in vars(callback), getattr(callback, name)
        setattr(callback, name, value)
        if was_own or name not in vars(callback):  # a property, which a subclass may have
            self._changes.callback(setattr, callback, name, before)
        else:
            self._changes.callback(delattr, callback, name)


@dataclass(eq=False, kw_only=True)
class _Lockstep(Hooks):
    """Has all workers stop after the same step, and finds out where they would train differently.

    Attributes:
      reads_logs: Whether a callback of some worker looks at the logs of training batches.
    """

    place = 0.5  # after the user's, before the checkpoint

    strategy: Any
    scratch: CallbackScratch | None
    decides: bool
    reads_logs: bool
    has_backup: bool

    def on_train_begin(self, logs: Any = None) -> None:
        if self.scratch is not None:
            self.scratch.begin()
        if self.has_backup:
            self._check_backup()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.decides:
            stops = _gather(self.strategy, [bool(self.model.stop_training)])
            self.model.stop_training = any(stop for [stop] in stops)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.scratch is not None:
            self.scratch.clean()
        rows = _gather(self.strategy, [bool(self.model.stop_training), _rate_bits(self.model)])
        stops = [bool(stop) for stop, _ in rows]
        if named := collectives.inconsistent_names([[rate] for _, rate in rows]):
            bits = np.array([rate for _, rate in rows], np.int64)
            rates = collectives.by_worker(f"{rate:g}" for rate in bits.view(np.float64))
            raise UnsupportedError(
                f"after epoch {epoch + 1} the workers have different learning rates ({rates}): a callback in "
                f"{named} decides by something of its own; decide by the epoch's logs, "
                "which are the same in every worker, and in all of them"
            )
        if any(stops) and not all(stops):
            named = worker_names([index for index, stop in enumerate(stops) if stop])
            reporter.note(
                f"a callback in {named} alone ended the training after epoch {epoch + 1}: all workers end"
            )
        self.model.stop_training = any(stops)

    def on_train_end(self, logs: Any = None) -> None:
        if default_strategy.builds_none():
            _gather(self.strategy, [0])  # what the callbacks have written is there for all

    def fit_ended(self) -> None:
        if self.scratch is not None:
            self.scratch.close()

    def _check_backup(self) -> None:
        """Raises UnsupportedError where BackupAndRestore has restored other backups in other workers."""
        checksum = 0
        for weight in self.model.get_weights():
            checksum = zlib.crc32(np.ascontiguousarray(weight).tobytes(), checksum)
        rows = _gather(self.strategy, [getattr(self.model, "_initial_epoch", None) or 0, checksum])
        if named := collectives.inconsistent_names(rows):
            raise UnsupportedError(
                f"BackupAndRestore has restored something else in {named} than in the "
                "others; give it a backup_dir on storage that all hosts share"
            )


def _check_files(strategy: Any, folders: Sequence[str]) -> None:
    """Raises UnsupportedError where the workers see other backups, before any of them restores.

    A restore may make variables, which is a collective: those that find nothing would not take part.
    """
    checksum = 0
    for folder in folders:
        found = [
            tf.io.gfile.join(place, name) for place, _, names in tf.io.gfile.walk(folder) for name in names
        ]
        listed = sorted(
            # TensorFlow's state of the checkpoints, with times
            (one.removeprefix(folder), one.endswith("/checkpoint") or tf.io.gfile.stat(one).length)
            for one in found
        )
        checksum = zlib.crc32(repr(listed).encode(), checksum)
    if named := collectives.inconsistent_names(_gather(strategy, [checksum])):
        raise UnsupportedError(
            f"BackupAndRestore has other files to restore in {named} than in the "
            "others; give it a backup_dir on storage that all hosts share"
        )


def _gather(strategy: Any, values: Sequence[int]) -> list[list[int]]:
    return collectives.gather_over_workers(strategy, [int(value) for value in values])


def _restoring_twice(users: Sequence[Any], callbacks: Sequence[Any]) -> list[Any]:
    """Returns each BackupAndRestore where raydist restores, and notes it."""
    if not any(isinstance(one, Hooks) and one.place < 0 for one in callbacks):
        return []
    found = [one for one in users if "BackupAndRestore" in keras_kinds(one)]
    if found:
        reporter.note(
            "BackupAndRestore is left out: raydist's own callbacks restore the training, and it would set "
            "it back"
        )
    return found


def _is_of_chief_alone(callback: Any) -> bool:
    """Whether a callback runs in the chief only: a LambdaCallback that only prints or reports.

    In a job that builds no strategy it may keep what the job reads, in each worker.
    """
    is_lambda = type(callback).__name__ == "LambdaCallback" and "LambdaCallback" in keras_kinds(callback)
    if default_strategy.builds_none() or not is_lambda:
        return False
    functions = [one for name, one in vars(callback).items() if name.startswith("on_") and callable(one)]
    return not any(may_reach_model(function) for function in functions)


def _may_decide_at_batch(callback: Any, base: type) -> bool:
    if not watches_batches(callback, base):
        return False
    return not any(kind in _UNDECIDED for kind in keras_kinds(callback)) or not is_keras(type(callback))


def _reads_batch_logs(callback: Any, base: type) -> bool:
    if isinstance(callback, Hooks):
        return False
    is_checkpoint = "ModelCheckpoint" in keras_kinds(callback)
    if is_checkpoint and callback.save_best_only and callback.save_freq != "epoch":
        return True
    hooks = (batch_hook_of(callback, name, base) for name in ("on_train_batch_end", "on_batch_end"))
    # Keras's own only display them, or stop all workers if one of them sees NaN.
    return any(_may_read_logs(one) for one in hooks if one is not None and not is_keras(one.function))


def _may_read_logs(hook: BatchHook) -> bool:
    function = getattr(hook.function, "__func__", hook.function)
    is_method = hook.is_of_class or function is not hook.function
    return may_read_after(function, 2 if is_method else 1)


def _rate_bits(model: Any) -> int:
    """Returns the learning rate as an integer; 0 where a schedule gives it, which counts steps."""
    rate = getattr(model.optimizer, "learning_rate", None)
    if rate is None or callable(rate):
        return 0
    return int(np.float64(rate.numpy() if hasattr(rate, "numpy") else rate).view(np.int64))
