"""Runs a job in the foreground: shows it while it is running, and how it ended."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from raydist.cli.screen import output, run_view, standard_streams
from raydist.cli.screen.progress import Progress, ProgressView, open_view
from raydist.errors import RunCancelledError
from raydist.outcome.printed import OutputText

if TYPE_CHECKING:
    from raydist import RunHandle


def run_job(job: str, *, is_json: bool, **given: Any) -> int:
    """Runs `job` to its end, or to its acceptance when detached, shows it, and returns the exit code.

    Args:
      given: As `api.run` takes it.

    Raises RaydistError before it starts.
    """
    from raydist import api

    standard_streams.tolerate_failures()
    screen = sys.stderr if is_json else sys.stdout
    with output.stdout_kept_for_json(is_json), open_view(screen) as view, interrupts():
        shown = _Screen(view)
        result = api.run(job, on_event=shown.take, check=False, **given)
    if is_json:
        output.print_json(result.as_dict())
    if result.state.is_terminal:
        run_view.print_end(result, said=shown.said, stream=screen)
    else:
        run_view.print_acceptance(result, stream=screen)
    return result.exit_code


class _Screen:
    """Turns what the run tells into lines."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view
        self._output = OutputText()
        self.said: set[str] = set()

    def take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "ray":
                self._say(event["message"])
            case "planned":
                self._planned(event)
            case "progress":
                fields = Progress.__dataclass_fields__
                self._view.show(Progress(**{name: event[name] for name in fields}))
            case "output":
                self._view.say(self._output.of(event))
            case "straggler" if event["message"] in self.said:
                pass  # of the other task on the same slow link
            case "note" if event["message"] in self.said:
                pass  # of the plan
            case "note":
                self.said.add(event["message"])
                self._view.say(f"note: {event['message']}")
            case "attempt" | "straggler" | "restarting" | "task_back" | "task_given_up":
                self._say(event["message"])

    def _planned(self, event: Mapping[str, Any]) -> None:
        self._say(f"run {event['run']}")
        self._say(f"strategy {event['strategy']}: {event['reason']}")
        self._say(f"keras {event['keras']}: {event['keras_reason']}")
        for note in event["notes"]:
            self._say(f"note: {note}")
            self.said.add(note)

    def _say(self, sentence: str) -> None:
        self.said.add(sentence)
        self._view.say(sentence)


@contextlib.contextmanager
def stopped_at_end(handle: RunHandle) -> Iterator[None]:
    """Stops a run at the end of the block, and waits for its end."""
    try:
        yield
    finally:
        handle.stop()
        with contextlib.suppress(RunCancelledError):
            handle.result()


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """Lets SIGINT and SIGTERM end the block, also where a shell without job control had SIGINT ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
