"""Tracker: tells a service outside of Ray of one run, from the run's newest record."""

from __future__ import annotations

import abc
import threading

from raydist.storage.run_record import RunRecord


class Tracker(abc.ABC):
    """Tells it in a thread of its own: neither the run nor its end depends on the service."""

    def __init__(self, *, thread: str) -> None:
        self._record: RunRecord | None = None
        self._notes: list[str] = []
        self._problem: str | None = "it has not answered yet"  # None once the service has all
        self._wake = threading.Event()
        self._is_over = self._is_given_up = False
        self._thread = threading.Thread(target=self._follow, name=thread, daemon=True)

    def update(self, record: RunRecord) -> None:
        """Takes the run's newest record; the first one starts the thread."""
        self._record = record
        if not self._thread.is_alive() and not self._is_over:
            self._thread.start()

    def notes(self) -> tuple[str, ...]:
        """Returns sentences for the run's notes, each once the first time that it holds."""
        return tuple(self._notes)

    def _note(self, sentence: str) -> None:
        if sentence not in self._notes:
            self._notes.append(sentence)

    @abc.abstractmethod
    def finish(self) -> str | None:
        """Waits until the service has all, for a limited time; returns what it lacks, or None.

        Call it once the run has ended and `update` has its last record.
        """

    @abc.abstractmethod
    def _follow(self) -> None:
        """Tells the service of records, in the thread, until it has the last one or is given up."""
