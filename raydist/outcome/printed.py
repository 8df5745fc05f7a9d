"""What a script prints in its tasks, on its way to whoever watches the run."""

from __future__ import annotations

from dataclasses import dataclass

from raydist.spec.tasks import TaskId


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
