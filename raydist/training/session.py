"""One task's TensorFlow side, from the patched Keras to the context that the train function gets."""

from __future__ import annotations

import functools
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import TypeVar

import keras
import tensorflow as tf
import wrapt

from raydist import tf_private, train_context
from raydist.data import shared
from raydist.errors import UnsupportedError
from raydist.metrics.parquet import MetricsWriter
from raydist.outcome.status import SHOW_PROGRESS
from raydist.planning.assignment import TaskAssignment
from raydist.spec.best import is_of_validation
from raydist.spec.job import JobSpec, KerasFlavour, Strategy
from raydist.spec.tasks import TaskType
from raydist.storage import claims
from raydist.storage.checkpoints import CheckpointStore, EvaluationStore
from raydist.storage.kept_state import HandedState
from raydist.storage.run_storage import open_run
from raydist.training.checkpointing.checkpoints import TaskCheckpoints
from raydist.training.checkpointing.kept_states import StateKeeper
from raydist.training.checkpointing.saved_state import SavedState
from raydist.training.checks import rehearsal
from raydist.training.cluster import (
    cache_files,
    collective_calls,
    collective_clock,
    collectives,
    default_strategy,
    own_processes,
    strategy,
    worker_shares,
)
from raydist.training.cluster.script_strategy import ScriptStrategy
from raydist.training.cluster.strategy import (
    TaskStrategy,
    build_coordinator,
    build_strategy,
    compute_in_fixed_order,
    is_central,
    note_on_processors,
)
from raydist.training.cluster.virtual_strategy import VirtualReplicasStrategy
from raydist.training.context import ScriptContext, TaskContext
from raydist.training.keras_patches.keras3 import patches
from raydist.training.parameter_server.chief import ParameterServerTrainer
from raydist.training.parameter_server.sources import SharedSources
from raydist.training.replicas import all_reduce, compilation
from raydist.training.reporting import reporter as reporting
from raydist.training.reporting.host_usage import cut_connections
from raydist.training.reporting.profiler import Profiler
from raydist.training.reporting.progress import Commands, TaskProgress
from raydist.training.reporting.reporter import Reporter
from raydist.training.reporting.tensorboard import TensorBoardWriter
from raydist.training.stepping import step_timing
from raydist.training.trainers.base import Strategies, TaskRun, Trainer
from raydist.training.trainers.evaluation import EvaluatorTrainer
from raydist.training.trainers.keras_fit import SynchronousTrainer

logger = logging.getLogger(__name__)

_Context = TypeVar("_Context", bound=TaskContext)

# For a task that failed: the controller, which waits for its last words, has other things to do.
LAST_UPLOAD_TIMEOUT_S = 30.0


@contextmanager
def open_session(
    assignment: TaskAssignment, *, progress: TaskProgress | None = None, commands: Commands | None = None
) -> Iterator[TaskContext]:
    """Prepares TensorFlow and Keras and yields the context; flushes metrics at the end.

    Runs in the main thread, after the environment is set and before user code is imported. An
    exception in the block is reported to the peers, which would otherwise wait for this task.
    """
    progress = progress or TaskProgress(assignment.task)
    _follow_workers(assignment, commands)
    note = _patch(assignment)
    compute_in_fixed_order(assignment.job)
    strategy = build_strategy(assignment)
    step_timing.start_input_clock(strategy)
    collective_clock.start(strategy)
    _seed(assignment)
    strategies = TaskStrategy(strategy, build_coordinator(strategy))
    with _opened(assignment, strategies, progress=progress, commands=commands) as run:
        _take_strategy(run, strategy)
        reporting.note(note)
        with ExitStack() as stack:
            context = stack.enter_context(_as_current(TaskContext(run, _trainer)))
            if assignment.has_default_strategy:
                stack.enter_context(default_strategy.as_default(strategy, assignment))
                stack.enter_context(own_processes.on_their_own(assignment))
            yield context


@contextmanager
def open_script(
    assignment: TaskAssignment,
    *,
    release_port: Callable[[], None] = lambda: None,
    progress: TaskProgress | None = None,
    commands: Commands | None = None,
) -> Iterator[ScriptContext]:
    """Prepares TensorFlow and Keras for a script, which builds its strategy by itself, and runs in the block.

    See `open_session`. What depends on the strategy begins once that is built.

    Args:
      release_port: Gives up the task's port, once TensorFlow has it.
    """
    progress = progress or TaskProgress(assignment.task)
    is_coordinator = assignment.strategy is Strategy.PARAMETER_SERVER and assignment.is_chief
    progress.set_joining(is_coordinator or assignment.strategy is Strategy.MULTI_WORKER_MIRRORED)
    _follow_workers(assignment, commands)
    note = _patch(assignment)
    compute_in_fixed_order(assignment.job)
    _seed(assignment)
    if assignment.strategy is Strategy.PARAMETER_SERVER and not assignment.is_chief:
        SharedSources(assignment.parcels).serve()  # before the script starts its server
    with ExitStack() as stack:

        def built(strategy: tf.distribute.Strategy) -> None:
            progress.set_joining(False)
            step_timing.start_input_clock(strategy)
            collective_clock.start(strategy)
            _take_strategy(run, strategy)

        strategies = ScriptStrategy(assignment, release_port=release_port, on_built=built)
        opened = _opened(assignment, strategies, progress=progress, commands=commands)
        run = stack.enter_context(opened)
        reporting.note(note)
        script = str(assignment.job.entry_point)
        if assignment.attempt > 0:
            reporting.note(
                f"attempt {assignment.attempt} ran {script} from its beginning: it continues from what the "
                "script itself restores (BackupAndRestore, CheckpointManager, raydist.context().restore). "
                "Files outside of its working folder are as the attempt before left them: what it appends to "
                "them is there twice"
            )
        stack.enter_context(strategies.watched())
        context = stack.enter_context(_as_current(ScriptContext(run, _trainer, strategies)))
        if assignment.has_default_strategy:
            stack.enter_context(strategies.as_default())
        elif assignment.has_own_loop:
            stack.enter_context(default_strategy.alike(assignment))
        if assignment.has_default_strategy or assignment.has_own_loop:
            stack.enter_context(own_processes.on_their_own(assignment))
        yield context
        strategies.finish()


@contextmanager
def _as_current(context: _Context) -> Iterator[_Context]:
    """Makes it what `raydist.context()` returns."""
    train_context.set_context(context)
    try:
        yield context
    finally:
        train_context.set_context(None)


@contextmanager
def _opened(
    assignment: TaskAssignment, strategies: Strategies, *, progress: TaskProgress, commands: Commands | None
) -> Iterator[TaskRun]:
    """Opens what a task stores, and finishes it; tells the peers of an exception in the block."""
    commands = commands or Commands()
    with ExitStack() as stack:
        told = tf_private.told_to_save(commands.save.is_set, on_handler=progress.set_saves_by_itself)
        stack.enter_context(told)
        storage = open_run(assignment.job.storage, run=assignment.job.name).patient()
        metrics = MetricsWriter.open(storage, task=assignment.task, attempt=assignment.attempt)
        board = TensorBoardWriter.open(storage, assignment)
        profiler = Profiler(
            storage.hasty(),
            assignment.task,
            is_asked=commands.profile,
            note=reporting.note,
            marks_steps=assignment.keras is not KerasFlavour.LEGACY,
        )
        reporter = Reporter(assignment, progress=progress, metrics=metrics, board=board, profiler=profiler)
        stack.enter_context(reporter.storing())
        keeper, kept, take_over = _kept_states(assignment, reporter)
        checkpoints = TaskCheckpoints(
            CheckpointStore(storage),
            keeper=keeper,
            kept=kept,
            on_kept=take_over,
            attempt=assignment.attempt,
            is_chief=assignment.is_chief,
            keep=assignment.job.keep,
            keep_best=assignment.job.keep_best,
            progress=progress,
            before_commit=functools.partial(_before_commit, assignment, reporter),
            evaluations=EvaluationStore(storage) if _may_have_evaluations(assignment.job) else None,
            has_evaluator=assignment.job.evaluator,
        )
        reporting.set_current(reporter)
        stack.callback(reporting.set_current, None)
        stack.callback(collective_calls.end)
        if _shares_input(assignment):
            shared.set_parcels(assignment.parcels)
            stack.callback(shared.set_parcels, None)
        if assignment.strategy is not Strategy.PARAMETER_SERVER:  # whose workers make their data
            stack.enter_context(cache_files.own_files(claims.this_process(), claims.is_alive))
        run = TaskRun(
            assignment,
            strategies=strategies,
            reporter=reporter,
            checkpoints=checkpoints,
            commands=commands,
            export_to=storage if assignment.job.export else None,
        )
        try:
            yield run
            collective_calls.leave()
            if assignment.is_chief and not progress.has_trained():
                entry_point = assignment.job.entry_point
                who = str(entry_point) if entry_point.is_script else "the train function"
                reporting.note(
                    f"{who} ended without reporting a step, so the run has no steps and no metrics: "
                    f"{SHOW_PROGRESS}"
                )
            checkpoints.finish()
            _check_storage(assignment)
            checkpoints.check_stored()
            if board is not None:
                board.succeeded()
        except BaseException as error:
            # First: the peers' failure would make the controller end this task, and the next attempt
            # continues from this checkpoint.
            _finish_quietly(checkpoints)
            if tf_private.is_exit_of_handler(error):
                raise  # the peers save, too
            tf_private.report_error_to_peers(f"{assignment.task}: {type(error).__name__}: {error}")
            raise


def _before_commit(assignment: TaskAssignment, reporter: Reporter) -> None:
    _check_storage(assignment)
    # Or a chief that dies would leave a gap in the curve before the checkpoint.
    reporter.flush()


def _check_storage(assignment: TaskAssignment) -> None:
    if assignment.proof is not None:
        assignment.proof.check_unchanged(host=socket.gethostname())


def _kept_states(
    assignment: TaskAssignment, reporter: Reporter
) -> tuple[StateKeeper | None, SavedState | None, Callable[[], None]]:
    """Returns what keeps states, what an attempt before has kept, and what takes over its reports."""
    handed: HandedState | None = assignment.kept
    if handed is None:
        return None, None, lambda: None

    memory = handed.memory if assignment.is_chief else None
    keeper = StateKeeper(memory, waiting=reporter.waiting, note=reporter.progress.note)
    state = handed.read()
    if state is None:
        return keeper, None, lambda: None

    def take_over() -> None:
        if assignment.is_chief:
            reporter.take_over(state.waiting)

    where = f"{assignment.run_uri} (step {state.step}, kept in memory)"
    return keeper, SavedState.read(state.files, uri=where), take_over


def _may_have_evaluations(job: JobSpec) -> bool:
    """Whether --keep-best is about values that an evaluator finds, or found before a resume without one.

    It follows ctx.fit, which no script calls.
    """
    return not job.entry_point.is_script and job.keep_best is not None and is_of_validation(job.keep_best)


def _shares_input(assignment: TaskAssignment) -> bool:
    """Whether there are peers that run the same program and end with this task."""
    is_worker = assignment.task.task_type is not TaskType.EVALUATOR
    return is_worker and assignment.strategy is Strategy.MULTI_WORKER_MIRRORED and assignment.num_workers > 1


def _patch(assignment: TaskAssignment) -> str | None:
    """Patches Keras, where it is the one that was asked for, and has TensorFlow log what the job wants.

    Returns a sentence for the run's notes, if there is one.
    """
    job, note = assignment.job, None
    if job.log_device_placement:
        tf.debugging.set_log_device_placement(True)
    tf_private.FreedIterators.begin()
    tf_private.exchange_each_type()
    tf_private.gather_sizes_in_loops()
    tf_private.count_saves_alone()
    tf_private.put_checkpoints(default_strategy.put)
    tf_private.key_traces_by_replica()
    tf_private.inline_functions(on_compiled=compilation.note_inlined)
    tf_private.check_constant_rows()
    check_keras(assignment.keras)
    if job.patch_keras:
        tf_private.make_variables_convertible()
        note = patches.patch(sync_batchnorm=job.sync_batchnorm)
        # It takes 0.1 s to import, and most jobs never do; those that do shall find it patched.
        wrapt.register_post_import_hook(functools.partial(_patch_tf_keras, job.sync_batchnorm), "tf_keras")
    if not assignment.is_chief:
        # Each task would make a run of MLflow of its own, all with one name and the same values.
        wrapt.register_post_import_hook(_end_autologging, "mlflow.utils.autologging_utils")
    rehearsal.enable(job.patch_keras and job.check_equality)
    all_reduce.configure(strategy.options_of(job), compression=strategy.compression_of(job))
    worker_shares.configure(assignment.shares)
    return note


def _follow_workers(assignment: TaskAssignment, commands: Commands | None) -> None:
    """Has the chief of parameter servers take in the workers that come, and let go of those that leave."""
    if assignment.strategy is not Strategy.PARAMETER_SERVER or not assignment.is_chief:
        return
    slots = tf_private.WorkerSlots(assignment.num_slots, cut=cut_connections, note=reporting.note)
    slots.keep()
    if commands is not None:
        follow = functools.partial(slots.follow, commands.workers)
        threading.Thread(target=follow, name="raydist-workers", daemon=True).start()


def _seed(assignment: TaskAssignment) -> None:
    # The same seed in each task: an unseeded shuffle would make the workers' shards overlap, because
    # each worker shuffles the whole data before it takes its slice.
    keras.utils.set_random_seed(tf_private.RunSeed(assignment.job.seed))
    tf_private.draw_anew_in_each_pass()


def _take_strategy(run: TaskRun, strategy: tf.distribute.Strategy) -> None:
    """Has the task's workers compare what they restore, and tells what the strategy does to the results."""
    gather = (
        None
        if collectives.is_alone(strategy)
        else functools.partial(collectives.gather_over_workers, strategy)
    )
    copies = (
        functools.partial(collectives.copies_of_replicas, strategy=strategy)
        if isinstance(strategy, VirtualReplicasStrategy) or _has_copies(strategy)
        else None
    )
    run.checkpoints.exchange_by(gather, copies)
    collective_calls.begin(strategy, functools.partial(setattr, run.reporter.progress, "collective"))
    reporting.note(all_reduce.note_on(strategy))
    reporting.note(note_on_processors(strategy))
    reporting.note(worker_shares.note_on(strategy))


def _has_copies(strategy: tf.distribute.Strategy) -> bool:
    """Whether a checkpoint has what each of several replicas holds; a TPU's is not read here."""
    is_other = isinstance(strategy, (tf.distribute.TPUStrategy, tf.distribute.ParameterServerStrategy))
    return strategy.num_replicas_in_sync > 1 and not is_other and not is_central(strategy)


def _trainer(run: TaskRun) -> Trainer:
    """Chooses how this task trains, once."""
    if run.assignment.task.task_type is TaskType.EVALUATOR:
        return EvaluatorTrainer(run)
    if run.coordinator is not None:
        return ParameterServerTrainer(run, sources=SharedSources(run.assignment.parcels))
    return SynchronousTrainer(run)


def _finish_quietly(checkpoints: TaskCheckpoints) -> None:
    """Lets the last checkpoint be stored while an exception ends the session, which is the one to tell."""
    try:
        checkpoints.finish(timeout_s=LAST_UPLOAD_TIMEOUT_S)
    except Exception as error:
        logger.warning("the last checkpoint is not stored: %s", error)


def _end_autologging(module: ModuleType) -> None:
    _for_good.enter_context(module.disable_autologging())


_for_good = ExitStack()  # what lasts as long as the process


def _patch_tf_keras(sync_batchnorm: bool, module: ModuleType) -> None:
    from raydist.training.keras_patches.tf_keras import patches

    reporting.note(patches.patch(sync_batchnorm=sync_batchnorm))


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
