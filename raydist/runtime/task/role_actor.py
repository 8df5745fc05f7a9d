"""RoleActor: one Ray actor that runs the command of an extra role."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import ray

from raydist.planning.assignment import command_environment
from raydist.runtime.host.guarded_command import GuardedCommand
from raydist.runtime.host.log_capture import LogCapture, LogTarget
from raydist.runtime.host.post_mortem import describe_exit, log_end
from raydist.runtime.host.scratch import Scratch
from raydist.runtime.task.code_archive import unpack_for_task
from raydist.spec.job import JobSpec
from raydist.spec.secrecy import secrets_of
from raydist.spec.tasks import ExtraRole, ExtraTask

# How long a command may take to end once it got SIGTERM.
GRACE_S = 5.0
# `start`, then `run`, which waits, and `stop` at the same time.
CONCURRENCY = 2


@dataclass(frozen=True, kw_only=True)
class RoleSetup:
    """What the actor of an extra role is started with.

    Attributes:
      scratch_name: Name of its scratch folder; unique on every host.
    """

    role: ExtraRole
    task: ExtraTask
    job: JobSpec = field(repr=False)  # its variables may be secret
    log: LogTarget
    scratch_name: str


@dataclass(frozen=True, kw_only=True)
class RoleHello:
    """What an extra role's task sends once its command runs.

    Attributes:
      host: The node's address as Ray knows it.
      problem: Why the command could not be started; None where it was.
    """

    host: str
    node_id: str
    pid: int
    scratch_path: Path
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class RoleEnd:
    """How a command ended by itself.

    Attributes:
      how: The end of a sentence, such as `exited with code 3`.
    """

    is_failure: bool
    how: str
    log_end: str


class RoleActor:
    """`run` follows the answer of `start`; `stop` may come at any time after it."""

    def __init__(self) -> None:
        self._is_stopping = False

    def start(self, setup: RoleSetup, code: bytes | None) -> RoleHello:
        """Starts the command in the job's code folder."""
        self._setup = setup
        self._scratch = Scratch.create(setup.scratch_name)
        self._scratch.take_temporary_files()
        self._capture = LogCapture(self._scratch.path, setup.log)
        self._capture.redirect()
        environ = command_environment(
            run=setup.job.name,
            role=setup.task.role,
            index=setup.task.index,
            num_gpus=setup.role.resources.num_gpus,
            given=setup.job.env,
            environ=os.environ,
            python_folder=str(Path(sys.executable).parent),
        )
        host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        try:
            folder = unpack_for_task(code, self._scratch, host=host) or self._scratch.path
            self._command = GuardedCommand.start(
                setup.role.command, folder=folder, environ=environ, grace_s=GRACE_S
            )
        except BaseException:
            self._scratch.remove()
            raise
        self._capture.start_uploading()
        return RoleHello(
            host=host,
            node_id=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            scratch_path=self._scratch.path,
            problem=self._command.problem,
        )

    def run(self) -> RoleEnd:
        """Waits until the command has ended by itself."""
        code = self._command.wait()
        if self._is_stopping:
            return RoleEnd(is_failure=False, how="was stopped", log_end="")
        self._command.wait_until_gone()  # what it has started may print still
        self._capture.flush()
        hide = secrets_of(self._setup.job).hide
        return RoleEnd(
            is_failure=code != 0,
            how="was lost: its guard was killed" if code is None else describe_exit(code),
            log_end=hide(log_end(self._scratch.path)),
        )

    def stop(self) -> None:
        """Ends the command with its children, stores the end of its log and leaves nothing on the host."""
        self._is_stopping = True
        self._command.stop()
        self._command.wait_until_gone()
        self._capture.flush()
        self._scratch.remove()


def describe_command(setup: RoleSetup) -> str:
    """Returns the command as a shell would take it, without secrets."""
    return secrets_of(setup.job).hide(shlex.join(setup.role.command))
