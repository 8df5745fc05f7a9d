"""What a script prints in its tasks, on its way to whoever watches the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raydist.spec.tasks import TaskId
from raydist.spec.text import listed


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputSpan:
    """Which bytes of a task's log its script has printed: what comes before and after is raydist's.

    Attributes:
      start: Offset of the first byte.
      end: Offset behind the last byte so far.
      is_over: Whether the script has ended, so that nothing follows.
    """

    start: int
    end: int
    is_over: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class PrintedLine:
    r"""A line that a script has printed, without its end.

    Attributes:
      text: What a terminal shows of it, with its control sequences.
      is_redrawn: Whether it was written over with `\r`, as progress bars are.
    """

    text: str
    is_redrawn: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """Lines that one task has printed in a row.

    Attributes:
      num_left_out: How many lines that came after these are only in the task's log.
    """

    task: TaskId
    lines: tuple[PrintedLine, ...] = ()
    num_left_out: int = 0


class OutputText:
    """Turns `output` events of a run into what a person reads."""

    def __init__(self) -> None:
        self._attempt: int | None = None

    def of(self, event: Mapping[str, Any]) -> str:
        """Returns the lines of an event, below a heading where its attempt is another than the last one's."""
        is_new = self._attempt not in (None, event["attempt"])
        self._attempt = event["attempt"]
        heading = [f"==> attempt {event['attempt']} <=="] if is_new else []
        lines = [f"{_prefix(line['tasks'])}{line['text']}" for line in event["lines"]]
        return "\n".join([*heading, *lines])


def _prefix(tasks: list[str]) -> str:
    return f"[{listed(tasks, most=3)}] " if tasks else ""
