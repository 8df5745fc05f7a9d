"""The user's `on_event`, whose mistakes do not end a run, and which may ask for the run's stop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from raydist.errors import RunCancelledError

logger = logging.getLogger(__name__)


class GuardedHook:
    """Calls a function with each event; what it raises is reported once and harms nothing.

    Attributes:
      asks_for_stop: Whether the function has raised RunCancelledError.
    """

    def __init__(self, call: Callable[[Mapping[str, Any]], object]) -> None:
        self._call = call
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
