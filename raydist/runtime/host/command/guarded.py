"""GuardedCommand: a command that ends, with all its children, when this process does."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raydist.runtime.host.command import guard

# How long the guard may take beyond the time that the command has to end by itself.
_EXTRA_S = 5.0
_START_TIMEOUT_S = 30.0


class GuardedCommand:
    """A command that a process of its own watches (runtime.host.command.guard).

    Attributes:
      problem: Why the command could not be started; None where it was.
    """

    def __init__(self, control: socket.socket, *, grace_s: float) -> None:
        self._control = control
        self._news = control.makefile("rb")
        self._grace_s = grace_s
        self.problem: str | None = None

    @classmethod
    def start(
        cls, command: Sequence[str], *, folder: Path, environ: Mapping[str, str], grace_s: float
    ) -> GuardedCommand:
        """Starts the command in `folder`, with this process's output as its own.

        Args:
          grace_s: Seconds between SIGTERM and SIGKILL.
        """
        ours, theirs = socket.socketpair()
        program = [sys.executable, "-I", "-S", guard.__file__, str(theirs.fileno()), str(grace_s)]
        with theirs:
            launcher = subprocess.Popen(
                [*program, *command],
                cwd=folder,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        launcher.wait(_START_TIMEOUT_S)
        made = cls(ours, grace_s=grace_s)
        made.problem = made._next_news().get("problem")
        return made

    def wait(self) -> int | None:
        """Waits until the command has ended by itself: its exit code, negative for a signal.

        None for one that was stopped, or whose guard was killed.
        """
        return self._next_news().get("exit_code")

    def stop(self) -> None:
        """Has the command and its children ended; `wait_until_gone` waits for that. Idempotent, from any
        thread."""
        try:
            self._control.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the guard is gone

    def wait_until_gone(self) -> bool:
        """Waits until nothing of the command is left; False where that takes too long."""
        self._control.settimeout(self._grace_s + _EXTRA_S)
        try:
            while self._news.readline():
                pass
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Lets go of the command, which ends it where that has not been done. Idempotent."""
        self._news.close()
        self._control.close()

    def _next_news(self) -> dict[str, Any]:
        line = self._news.readline()
        news: dict[str, Any] = json.loads(line) if line else {}
        return news
