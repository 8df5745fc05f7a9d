"""One task inside its process: the one place that joins the runtime and the TensorFlow side."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Protocol

from raydist import errors
from raydist.data.failures import data_error_in
from raydist.entry import entry_point
from raydist.entry.entry_point import load_function, run_script
from raydist.entry.job_source import note_on_params
from raydist.entry.keras2_names import advice_on
from raydist.known_versions import KNOWN, installed_version
from raydist.outcome.status import FailureKind, TaskFailure, TaskMessage, TaskState, TaskStatus
from raydist.planning.assignment import TaskAssignment
from raydist.spec.job import KerasFlavour
from raydist.spec.secrecy import Secrets, secrets_of
from raydist.spec.tasks import TaskId
from raydist.spec.text import without_colours
from raydist.training.cluster.gpus import check_gpus
from raydist.training.lazy_imports import KERAS, KERAS_EXTRAS, executed_on_first_use, left_out, uncollected
from raydist.training.reporting.progress import Commands, TaskProgress, flush_output
from raydist.training.reporting.script_terminal import without_terminal
from raydist.training.reporting.tf_messages import advice_on_place, readable, with_advice

logger = logging.getLogger(__name__)

NO_SECRETS = Secrets()
_SIGNAL_INTERVAL_S = 0.5
# By the class of the error; the first that fits counts.
_KINDS = {
    errors.MistakeError: FailureKind.MISTAKE,
    errors.StorageError: FailureKind.STORAGE,
    errors.DeviceError: FailureKind.DEVICE,
    errors.ClusterError: FailureKind.START,
}
_PRELOADED = (
    "raydist.training.session",
    "raydist.training.parameter_server.sources",
    "raydist.training.cluster.data_service",
    "raydist.runtime.task.child",
)


class Lease(Protocol):
    """The port that this task holds until TensorFlow has taken it."""

    port: int

    def another(self) -> Lease: ...

    def close(self) -> None: ...


class Files(Protocol):
    """What this task writes for its user."""

    output_dir: Path

    def store_output(self, *, on_file: Callable[[], None]) -> None: ...

    def keep_working_files(self) -> str | None: ...


def preload() -> None:
    """Imports what any task needs, for processes that are forked from this one."""
    with uncollected(), executed_on_first_use(*KERAS_EXTRAS), told_if_newer():
        for module in _PRELOADED:
            importlib.import_module(module)
        if os.environ.get("TF_USE_LEGACY_KERAS") == "1":
            importlib.import_module("tf_keras")


class TrainingRunner:
    """What a task actor runs. `status` may be called from any thread, the rest from the main thread."""

    def __init__(self, task: TaskId, host: str) -> None:
        self._task = task
        self._host = host
        self._progress = TaskProgress(task, host=host)
        self._commands = Commands()

    def warm_up(self) -> None:
        """Imports TensorFlow, while the addresses of the other tasks are still gathered."""
        with uncollected(), executed_on_first_use(*KERAS_EXTRAS), told_if_newer():
            importlib.import_module("raydist.training.session")

    def status(self) -> TaskStatus:
        return self._progress.status()

    def handle(self, message: TaskMessage) -> None:
        """Takes a message for the train function, which looks at it when it comes to a step's end."""
        if not self._commands.take(message):
            logger.info("%s: %s is not for the train function", self._task, message)

    def run(self, assignment: TaskAssignment, code_dir: Path | None, lease: Lease) -> TaskStatus:
        """Runs the train function and returns the last status; what it raises becomes a failure there."""
        self._progress.set_state(TaskState.STARTING, address=assignment.address)
        try:
            with closing(lease):
                if assignment.num_gpus:
                    with told_if_newer():
                        check_gpus(self._task, host=self._host, num_gpus=assignment.num_gpus)
                self._train(assignment, code_dir, lease)
            if assignment.files is not None:
                self._store(assignment.files)  # of a task that fails the actor does it: its peers shall know
        except BaseException as error:  # a process border: everything becomes a status
            failure = failure_of(
                self._task, error, secrets=secrets_of(assignment.job), keras=assignment.keras
            )
            logger.error("%s failed: %s", self._task, failure.message)
            if failure.traceback:
                with suppress(OSError, ValueError, AttributeError):  # see flush_output
                    sys.stderr.write(failure.traceback)
            self._progress.failed(failure)
        else:
            self._progress.set_state(TaskState.FINISHED)
        flush_output()
        return self.status()

    def _store(self, files: Files) -> None:
        files.store_output(on_file=self._progress.beat)
        if (sentence := files.keep_working_files()) is not None:
            self._progress.note(sentence)

    def _train(self, assignment: TaskAssignment, code_dir: Path | None, lease: Lease) -> None:
        # Imports TensorFlow, which has to see the environment that the actor has set.
        with told_if_newer():
            from raydist.training.session import open_script, open_session

        job = assignment.job
        if job.entry_point.is_script:
            with open_script(
                assignment, release_port=lease.close, progress=self._progress, commands=self._commands
            ) as context:
                self._progress.set_state(TaskState.RUNNING)
                with self._progress.prints_output(), without_terminal(given=job.env):
                    run_script(job.entry_point, args=job.args, working_dir=code_dir, note=context.note)
            return
        with open_session(assignment, progress=self._progress, commands=self._commands) as context:
            lease.close()
            train = load_function(job.entry_point, working_dir=code_dir)
            if assignment.is_chief and (sentence := note_on_params(train, job.params)) is not None:
                context.note(sentence)
            self._progress.set_state(TaskState.RUNNING)
            value = train(context)
            if assignment.is_chief:  # while the ps are there, on which a tensor of it may be
                self._progress.returned(value, hide=secrets_of(job).hide)


class ServerRunner(TrainingRunner):
    """What a worker or ps actor of ParameterServer runs: a server for the chief's functions, and no more."""

    _module = "raydist.training.parameter_server.sources"

    def warm_up(self) -> None:
        """Imports TensorFlow without Keras, for which a worker that comes back shall not wait."""
        with uncollected(), left_out(*KERAS), told_if_newer():
            importlib.import_module(self._module)

    def _train(self, assignment: TaskAssignment, code_dir: Path | None, lease: Lease) -> NoReturn:
        server = self._start(assignment, lease)
        lease.close()
        self._progress.set_state(TaskState.RUNNING)
        print(f"raydist: {self._task} serves at {assignment.address}", flush=True)  # in the task's log
        while server:
            # The runtime ends the process once the chief is done, as the server never returns. In slices:
            # Python looks at a signal, such as that of a host that is taken away, between two of them.
            threading.Event().wait(_SIGNAL_INTERVAL_S)
        raise AssertionError("unreachable")

    def _start(self, assignment: TaskAssignment, lease: Lease) -> object:
        """Starts the server, which serves as long as somebody holds it."""
        from raydist.training.parameter_server.sources import start_server

        return start_server(assignment)


class DataWorkerRunner(ServerRunner):
    """What a data worker's actor runs: servers of tf.data service, and no more."""

    _module = "raydist.training.cluster.data_service"

    def _start(self, assignment: TaskAssignment, lease: Lease) -> object:
        from raydist.training.cluster.data_service import is_dispatcher, start_servers

        if not is_dispatcher(assignment):
            return start_servers(assignment, worker_port=lease.port)
        with closing(lease.another()) as second:
            return start_servers(assignment, worker_port=second.port)


@contextmanager
def told_if_newer() -> Iterator[None]:
    """Raises UnsupportedError for an import that fails because a library is newer than raydist knows."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        newer = {name: version for name in KNOWN if KNOWN[name].is_newer(version := installed_version(name))}
        if not newer:
            raise
        found = ", ".join(f"{name} {version}" for name, version in newer.items())
        remedy = " ".join(f'"{name}{KNOWN[name].requirement}"' for name in newer)
        raise errors.UnsupportedError(
            f"{found} is newer than what raydist knows, and lacks what it needs ({error}); install {remedy}"
        ) from error


def failure_of(
    task: TaskId,
    error: BaseException,
    *,
    secrets: Secrets = NO_SECRETS,
    keras: KerasFlavour = KerasFlavour.KERAS_3,
) -> TaskFailure:
    """Says in data why the train function ended with `error`, without the job's `secrets`."""
    error = data_error_in(error) or error
    message = str(error) or type(error).__name__
    # Others may be what a peer's failure made TensorFlow raise here: the controller, which sees all, tells.
    kinds = (kind for error_class, kind in _KINDS.items() if isinstance(error, error_class))
    kind = next(kinds, FailureKind.USER)
    users_traceback = wants_retry = None
    if kind is FailureKind.USER and _has_saved(error):
        kind, wants_retry = FailureKind.SAVED, True
    if kind is FailureKind.USER:
        message = with_advice(readable(message, with_frames=False))
        if (place := advice_on_place(error, working_dir=os.getcwd())) is not None:
            message = f"{message.rstrip()}\n{place}"
        if keras is KerasFlavour.KERAS_3 and (advice := advice_on(error)) is not None:
            message = f"{message.rstrip()}\n{advice}"
        users_traceback = without_colours(secrets.hide(readable(_users_traceback(error))))
        wants_retry = _wants_retry(error)
    return TaskFailure(
        task=task,
        kind=kind,
        error_type=type(error).__name__,
        message=without_colours(secrets.hide(message)),
        traceback=users_traceback,
        wants_retry=wants_retry,
    )


def _wants_retry(error: BaseException) -> bool | None:
    """Returns what the user's exception says of another attempt; None for most."""
    raised = error.__context__
    if raised is not None and hasattr(raised, "ag_error_metadata"):
        error = raised  # in a function that AutoGraph converted
    if isinstance(error, errors.FinalError):
        return False
    is_exit = isinstance(error, SystemExit) and error.code == os.EX_TEMPFAIL
    return True if is_exit or isinstance(error, errors.RetryableError) else None


def _has_saved(error: BaseException) -> bool:
    if not isinstance(error, SystemExit):
        return False
    from raydist import tf_private  # TensorFlow, which this process has imported by then

    return tf_private.is_exit_of_handler(error)


def _users_traceback(error: BaseException) -> str:
    """Formats the traceback without the frames that lead to the user's code."""
    frame = error.__traceback__
    while frame is not None and _leads_to_code(frame) and frame.tb_next is not None:
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame))


def _leads_to_code(frame: TracebackType) -> bool:
    filename = frame.tb_frame.f_code.co_filename
    return filename in (__file__, entry_point.__file__) or filename == "<frozen runpy>"
