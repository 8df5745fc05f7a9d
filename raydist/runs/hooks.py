"""What the user has run with a run: `on_event` in the driver, and the command at the end.

Their mistakes do not end the run. `on_event` may ask for its stop.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from raydist.errors import RunCancelledError
from raydist.outcome.result import RunResult
from raydist.spec.secrecy import dump_plain_json

logger = logging.getLogger(__name__)


class GuardedHook:
    """Calls a function with each event; what it raises is reported once and harms nothing.

    Attributes:
      has_listener: Whether there is a function.
      asks_for_stop: Whether the function has raised RunCancelledError.
    """

    def __init__(self, call: Callable[[Mapping[str, Any]], object] | None) -> None:
        """Takes the function; None if nobody is to be told."""
        self.has_listener = call is not None
        self._call = call or (lambda event: None)
        self._notes: tuple[str, ...] = ()
        self._stop: Callable[[], None] = lambda: None
        self.asks_for_stop = False

    def __call__(self, event: Mapping[str, Any]) -> None:
        try:
            self._call(event)
        except RunCancelledError:
            self.asks_for_stop = True
            self._stop()
        except Exception as error:  # the user's code, as in a task; Ctrl-C is none
            if not self._notes:
                logger.exception("on_event failed for the event %r", event.get("event"))
                what = f"{type(error).__name__}: {error}"
                self._notes = (
                    f"on_event failed for an event {event.get('event')!r} ({what}); the run continued",
                )

    def stop_by(self, stop: Callable[[], None]) -> None:
        """Takes what stops the run; calls it if the function has asked for that already."""
        self._stop = stop
        if self.asks_for_stop:
            stop()

    def notes(self) -> tuple[str, ...]:
        """Returns a sentence about its first failure, if there was one."""
        return self._notes


TIMEOUT_S = 60.0

_STDERR = 2


def run_command(command: str, result: RunResult, *, storage: str, timeout_s: float = TIMEOUT_S) -> str | None:
    """Runs `command` in a shell of its own, and returns a sentence if it failed.

    It gets the result as JSON on stdin, and the run's name, state and storage in its environment. What it
    prints goes to stderr, as stdout may be for JSON alone. What it started in its process group ends with
    the time limit.
    """
    facts = {
        "RAYDIST_RUN": result.run,
        "RAYDIST_STATE": result.state.value,
        "RAYDIST_STORAGE": storage,
    }
    with tempfile.TemporaryFile() as stdin:  # a pipe would block for a command that does not read it
        stdin.write(dump_plain_json(result.as_dict()).encode())
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=stdin,
                stdout=_STDERR,
                env={**os.environ, **facts},
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            return f"on_end could not be started: {error}"
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return f"on_end took longer than {timeout_s:g} s, and was ended"
        except KeyboardInterrupt:
            return "on_end was ended by Ctrl-C"
        finally:
            _end(process)
    if code < 0:
        return f"on_end was killed by {signal.Signals(-code).name}"
    return f"on_end ended with exit code {code}" if code else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the shell, if it still runs, with all that it started in its session's first group."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
