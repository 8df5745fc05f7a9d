"""One task's TensorFlow side, from the mended Keras to the context that the train function gets."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import keras
import tensorflow as tf

from raydist.errors import StorageError, UnsupportedError
from raydist.metrics.parquet import MetricsWriter
from raydist.planning.assignment import TaskAssignment
from raydist.spec.job import KerasFlavour
from raydist.storage.checkpoints import CheckpointStore
from raydist.storage.run_storage import open_run
from raydist.strategies import active_context, input_clock, keras3, loss_rules, tensorflow_internals
from raydist.strategies.after_import import after_import
from raydist.strategies.agreement import gather_over_workers, is_alone
from raydist.strategies.build import build_coordinator, build_strategy
from raydist.strategies.checkpoints import TaskCheckpoints
from raydist.strategies.context import TaskContext
from raydist.strategies.export import ExportFolder
from raydist.strategies.orders import Orders
from raydist.strategies.progress import TaskProgress
from raydist.strategies.worker_sources import SourceFolder

logger = logging.getLogger(__name__)

TICK_INTERVAL_S = 1.0
# For a task that failed: the controller, which waits for its last words, has other things to do.
LAST_UPLOAD_TIMEOUT_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Session:
    """An open session: the context, valid until the `with` block ends."""

    context: TaskContext


@contextmanager
def open_session(
    assignment: TaskAssignment, *, progress: TaskProgress | None = None, orders: Orders | None = None
) -> Iterator[Session]:
    """Prepares TensorFlow and Keras and yields the session; flushes metrics at the end.

    Runs in the main thread, after the environment is set and before user code is imported. An
    exception in the block is reported to the peers, which would otherwise wait for this task.
    """
    progress = progress or TaskProgress(assignment.task)
    check_keras(assignment.keras)
    if assignment.job.mend_keras:
        keras3.mend(sync_batchnorm=assignment.job.sync_batchnorm)
        after_import("tf_keras", functools.partial(_mend_tf_keras, assignment.job.sync_batchnorm))
    loss_rules.enable_check(assignment.job.mend_keras and assignment.job.check_equality)
    strategy = build_strategy(assignment, start_timeout_s=assignment.job.start_timeout)
    input_clock.start(strategy)
    # The same seed in each task: an unseeded shuffle would make the workers' shards overlap, because
    # each worker shuffles the whole data before it takes its slice (TF_NOTES 1.9).
    keras.utils.set_random_seed(assignment.job.seed)
    with ExitStack() as stack:
        storage = open_run(assignment.job.storage, run=assignment.job.name).patient()
        metrics = MetricsWriter.open(storage, task=assignment.task, attempt=assignment.attempt)
        stack.enter_context(_ticking(metrics))
        checkpoints = TaskCheckpoints(
            CheckpointStore(storage),
            attempt=assignment.attempt,
            is_chief=assignment.is_chief,
            keep=assignment.job.keep,
            keep_best=assignment.job.keep_best,
            progress=progress,
            gather=None if is_alone(strategy) else functools.partial(gather_over_workers, strategy),
            # Or a chief that dies would leave a gap in the curve before the checkpoint.
            before_commit=metrics.flush,
        )
        context = TaskContext(
            assignment,
            strategy=strategy,
            progress=progress,
            checkpoints=checkpoints,
            metrics=metrics,
            sources=SourceFolder(storage, storage),
            coordinator=build_coordinator(strategy),
            orders=orders,
            export_folder=ExportFolder(storage, storage) if assignment.job.export else None,
        )
        stack.enter_context(active_context.activated(context))
        try:
            yield Session(context=context)
            checkpoints.finish()
        except BaseException as error:
            # First: the peers' failure would make the controller end this task, and the next attempt
            # goes on from this checkpoint.
            _finish_quietly(checkpoints)
            tensorflow_internals.report_error_to_peers(f"{assignment.task}: {type(error).__name__}: {error}")
            raise


def _finish_quietly(checkpoints: TaskCheckpoints) -> None:
    """Lets the last checkpoint be stored while an exception ends the session, which is the one to tell."""
    try:
        checkpoints.finish(timeout_s=LAST_UPLOAD_TIMEOUT_S)
    except Exception as error:
        logger.warning("the last checkpoint is not stored: %s", error)


def _mend_tf_keras(sync_batchnorm: bool) -> None:
    from raydist.strategies import legacy_keras

    legacy_keras.mend(sync_batchnorm=sync_batchnorm)


@contextmanager
def _ticking(metrics: MetricsWriter) -> Iterator[None]:
    """Uploads metrics in a thread, so that training does not wait for storage, and the rest at the end."""
    is_done = threading.Event()

    def tick() -> None:
        while not is_done.wait(TICK_INTERVAL_S):
            try:
                metrics.tick()
            except StorageError as error:
                # The writer keeps what it could not store; the flush at the end is the last try.
                logger.warning("metrics are not stored yet: %s", error)

    thread = threading.Thread(target=tick, name="raydist-metrics", daemon=True)
    thread.start()

    def stop() -> None:
        is_done.set()
        thread.join()

    try:
        yield
    except BaseException:
        stop()
        try:
            metrics.flush(is_hasty=True)
        except StorageError as error:  # the exception that ends the session is the one to tell
            logger.warning("the last metrics are lost: %s", error)
        raise
    stop()
    metrics.flush()


def check_keras(flavour: KerasFlavour) -> None:
    """Raises UnsupportedError when `tf.keras` is not the Keras that was asked for.

    It is chosen by TF_USE_LEGACY_KERAS at its first use (tensorflow/python/util/lazy_loader.py); what
    touched it before cannot be undone.
    """
    found = tf.keras.Model.__module__.partition(".")[0]
    wanted = "tf_keras" if flavour is KerasFlavour.LEGACY else "keras"
    if found != wanted:
        raise UnsupportedError(
            f"tf.keras is {found}, asked for was --keras {flavour.value}; something imported it before "
            "the task's environment was set, such as a sitecustomize or a Ray worker_process_setup_hook"
        )
