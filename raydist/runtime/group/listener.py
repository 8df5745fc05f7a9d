"""Listener: hears of each task from its agent, in a thread of its own."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import ray

# What comes within this time is taken together, so that a large run does not keep the controller busy.
_GATHER_S = 0.02
# A task tells its progress twice a second. Up to a thousand tasks no more than so many do in a second, since
# each answer costs the driver some 0.3 ms. Each tells it so often that it is not taken for missing.
_PROGRESS_EVERY_S = 0.5
_ANSWERS_A_SECOND = 500
_MOST_PROGRESS_S = 2.0


def progress_every_s(num_tasks: int) -> float:
    """Returns how often each task of such a run tells its progress, in seconds."""
    return min(max(_PROGRESS_EVERY_S, num_tasks / _ANSWERS_A_SECOND), _MOST_PROGRESS_S)


@dataclass(frozen=True)
class Answer:
    """The answer to a call: its result, or the error that Ray raises for it.

    Attributes:
      key: As it was given with the call.
    """

    key: Hashable
    future: Future[Any]


class Listener:
    """Keeps a long poll open at each agent that it follows, also while its owner does something else.

    An agent that nobody asks for long takes itself for cut off.
    """

    def __init__(self, *, progress_every_s: float) -> None:
        """Takes the seconds after which a task's progress alone is told."""
        self._progress_every_s = progress_every_s
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[Answer, Any] | None] = queue.SimpleQueue()
        self._is_closed = False
        threading.Thread(target=self._follow_all, name="raydist-news", daemon=True).start()

    def expect(self, key: Hashable, ref: Any) -> None:
        """Has `take` return the answer to a call."""
        ref.future().add_done_callback(lambda future: self._answers.put(Answer(key, future)))

    def follow(self, key: Hashable, agent: Any) -> None:
        """Has `take` return all that the agent tells, up to an error."""
        self._ask(key, agent, since=0)

    def take(self, *, timeout_s: float) -> list[Answer]:
        """Waits for an answer; returns all that have come."""
        try:
            answers = [self._answers.get(timeout=timeout_s)] if timeout_s > 0 else []
        except queue.Empty:
            return []
        if answers:
            time.sleep(_GATHER_S)
        while True:
            try:
                answers.append(self._answers.get_nowait())
            except queue.Empty:
                return answers

    def close(self) -> None:
        """Asks no more. Idempotent."""
        self._is_closed = True
        self._ready.put(None)

    def _ask(self, key: Hashable, agent: Any, *, since: int) -> None:
        # Ray's own thread, which the callback runs in, is not to call Ray.
        asked = agent.news.remote(since, self._progress_every_s).future()
        asked.add_done_callback(lambda future: self._ready.put((Answer(key, future), agent)))

    def _follow_all(self) -> None:
        while (ready := self._ready.get()) is not None and not self._is_closed and ray.is_initialized():
            answer, agent = ready
            self._answers.put(answer)
            if answer.future.exception() is None:  # else there is nobody to ask any more
                self._ask(answer.key, agent, since=answer.future.result().seq)
