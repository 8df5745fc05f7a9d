"""What a script prints in all its tasks, shown once where they print the same."""

from __future__ import annotations

import collections
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from raydist.controller.attempt import servers
from raydist.outcome.printed import Printed, PrintedLine
from raydist.planning.plan import Plan
from raydist.spec.job import RunOn
from raydist.spec.log_noise import NoiseFilter
from raydist.spec.tasks import TaskId, TaskType, chief_of
from raydist.spec.text import as_submitted, without_sequences

# How long a line waits for the other tasks to print it too.
WAIT_S = 2.0
# And one of another task for the chief, while nothing says that the chief has got further.
CHIEF_WAIT_S = 10.0
# And for one whose script has not begun: the tasks of a run begin together, but for what slows down a host.
START_WAIT_S = 10.0
# How often a script that prints faster than it is shown is told about.
LEFT_OUT_EVERY_S = 5.0
# Lines that wait; beyond, the oldest waits no longer.
MOST_WAITING = 20_000

# What lines of two tasks may differ in: a time at the beginning, of TensorFlow's C++ code with its thread.
_STAMP = re.compile(
    r"[IWEF]0000 00:00:\d+\.\d+ +\d+ "
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ "
    r"|\[?(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?"
)
# And in a progress bar, or Keras's line of an epoch, how long it took.
_EPOCH = re.compile(r"\d+/\d+ - ")
_TIME = re.compile(
    r" {0,20}(?:\d{1,6}(?::\d\d)+"
    r"|[\d.?]{1,20} ?(?:[num\u00b5]?s|min|h)(?:/\w{1,20})?(?![\w/])"
    r"|[\d.?]{1,20} ?[a-zA-Z]{0,20}/s(?!\w))"
)
# Of tqdm, and of Keras 3 and tf_keras; what the script prints while one is drawn stands behind it.
_BAR = re.compile(
    r"(?P<name>[^|]{0,200}?) {0,9}\d{1,3}%\|[^|]{0,300}\| {0,9}(?P<num>[\w.]+)/(?P<total>[\w.]+)"
    r" \[[^\]]{0,300}\]"
    r"| {0,9}(?P<step>\d+)/(?P<steps>\d+|Unknown)(?: \[[=>.]+\]| \u2501+)?(?: -)? (?:ETA: )?[\d:]+\w*"
    r"(?: \d+\w+/\w+)?(?: - [^\s:]{1,100}: -?(?:[\d.]+(?:e[+-]\d+)?|nan|inf))*"
)


@dataclass(frozen=True, kw_only=True)
class ShownLine:
    """A line to show.

    Attributes:
      tasks: Those that printed it; empty for a line of all.
    """

    text: str
    tasks: tuple[TaskId, ...] = ()


@dataclass(eq=False, kw_only=True)
class _Line:
    """One line that some tasks have printed, as yet.

    Attributes:
      end: What a progress bar that is whole shows; None of any other, and of other lines.
      after: The newest line without the chief that one of its tasks had printed before.
      position: Which of the chief's lines it is, from 1 on; 0 for a line of others.
      passed: Tasks that have printed a later line of the chief's, but not this one.
      is_disputed: Whether one of these has printed a line of its own in its place.
      is_awaited: Whether nothing says that the chief is past the place where it would print it.
      is_open: Whether a task that prints it from now on is taken for late.
    """

    text: str
    at_s: float
    number: int = 0
    after: int = 0
    end: str | None = None
    tasks: list[TaskId] = field(default_factory=list)
    num_left_out: int = 0
    position: int = 0
    passed: set[TaskId] = field(default_factory=set)
    is_disputed: bool = False
    is_awaited: bool = True
    is_open: bool = True
    shown_at_s: float = math.inf


class _Equals:
    """The lines with one key that tasks may still print: a task's third one is that of the others, too."""

    def __init__(self) -> None:
        self._lines: collections.deque[_Line] = collections.deque()
        self._first = 0
        self._next: dict[TaskId, int] = {}

    def take(self, task: TaskId, make: Callable[[], _Line]) -> _Line:
        """Returns the first line that the task has not printed; what `make` returns where there is none."""
        at = max(self._next.get(task, 0), self._first)
        while at - self._first < len(self._lines) and not self._lines[at - self._first].is_open:
            at += 1
        if at - self._first == len(self._lines):
            self._lines.append(make())
        self._next[task] = at + 1
        return self._lines[at - self._first]

    def forget_closed(self) -> bool:
        """Returns whether no line is left."""
        while self._lines and not self._lines[0].is_open:
            self._lines.popleft()
            self._first += 1
        return not self._lines


class ScriptOutput:
    """Takes the lines of each task, and returns those to show. Does no I/O.

    A line that all tasks have printed is shown once, in the chief's order. So is one that the chief alone has
    printed: at once if the others have printed a later one, and after `WAIT_S`, from the beginning of their
    scripts on. It is shown with its task if another one has printed a line of its own in its place, as all
    lines of other tasks are. Equal lines are matched by their count, in any order, and however late.
    """

    def __init__(
        self,
        tasks: Sequence[TaskId],
        *,
        logs_command: str,
        has_gpus: Callable[[TaskId], bool] = lambda task: False,
    ) -> None:
        """Takes the tasks that run the script.

        Args:
          logs_command: What shows all lines, for messages.
          has_gpus: Whether a task has GPUs.
        """
        self._tasks = frozenset(tasks)
        self._chief = chief_of(task.task_type for task in tasks)
        self._logs_command = logs_command
        self._noise = {task: NoiseFilter(has_gpus=has_gpus(task), with_aborts=False) for task in tasks}
        self._equals: dict[Hashable, _Equals] = {}
        self._of_chief: collections.deque[tuple[_Line, Hashable]] = collections.deque()
        self._of_others: dict[int, tuple[_Line, Hashable]] = {}  # by their number, the oldest first
        self._newest: dict[TaskId, int] = {}  # of a task's lines that the chief had not printed
        self._num_of_chief = 0
        self._by_position: dict[int, _Line] = {}
        self._reached = dict.fromkeys(tasks, 0)  # the last of the chief's lines that a task has printed
        # Numbers of the lines since then that the chief had not printed.
        self._own: dict[TaskId, collections.deque[int]] = {task: collections.deque() for task in tasks}
        self._open: collections.deque[tuple[_Line, Hashable]] = collections.deque()  # shown, for late tasks
        self._not_begun = set(tasks)
        self._begun_s = math.inf  # when the last task's script began
        self._num_lines = 0
        self._num_left_out = 0  # that no line which waits tells
        self._left_out_since_s = math.inf
        self._left_out: _Line | None = None  # the line that tells it, while it waits
        self._left_out_at_s: dict[TaskId, float] = {}
        self._flooded: set[TaskId] = set()  # tasks whose next lines are left out, too

    @classmethod
    def of(cls, plan: Plan, *, logs_command: str) -> ScriptOutput:
        """Returns that of an attempt with this plan."""
        runs_all = plan.job.run_on is RunOn.ALL
        idle = () if runs_all else servers(plan.strategy, plan.tasks)
        tasks = [
            task for task in plan.tasks if task not in idle and task.task_type is not TaskType.DATA_WORKER
        ]
        return cls(
            tasks, logs_command=logs_command, has_gpus=lambda task: plan.resources_of(task).num_gpus > 0
        )

    def add(self, printed: Iterable[Printed], *, now_s: float) -> None:
        """Takes what tasks have printed."""
        for part in printed:
            if part.task not in self._tasks:
                continue
            self._not_begun.discard(part.task)
            if not self._not_begun:
                self._begun_s = min(self._begun_s, now_s)
            if part.lines:
                self._flooded.discard(part.task)
                if self._num_left_out:
                    self._tell_left_out(now_s)
            for line in part.lines:
                self._add(part.task, line, now_s)
            if part.num_left_out:
                self._flooded.add(part.task)
                self._left_out_at_s[part.task] = now_s
                self._leave_out(part.num_left_out, now_s)

    def take(self, *, now_s: float, is_last: bool = False) -> list[ShownLine]:
        """Returns what is to be shown now; all that is left, if the tasks are gone."""
        if now_s - self._left_out_since_s >= LEFT_OUT_EVERY_S:
            self._tell_left_out(now_s)
        shown = []
        while (line := self._next(now_s, is_last)) is not None:
            if line is self._left_out:
                self._left_out = None
                shown.append(self._left_out_line(line.num_left_out))
            elif self._is_in_doubt(line):
                self._leave_out(len(line.tasks), now_s)
            else:
                tasks = () if self._is_of_all(line) else tuple(sorted(line.tasks, key=_by_index))
                shown.append(ShownLine(text=line.text, tasks=tasks))
                if tasks and line.position:
                    self._end_dispute()
        self._close(now_s)
        if is_last and self._num_left_out:
            shown.append(self._left_out_line())
        return shown

    def _add(self, task: TaskId, line: PrintedLine, now_s: float) -> None:
        text = as_submitted(without_sequences(line.text)).rstrip()
        if not self._noise[task].keeps(text) or text.startswith("raydist: "):
            return
        if line.is_redrawn:
            self._add_redrawn(task, text, now_s)
        else:
            self._take(task, match_key(text), text, now_s)

    def _add_redrawn(self, task: TaskId, text: str, now_s: float) -> None:
        """Adds a line with a progress bar: how far it was when it was drawn last differs between tasks."""
        bar = _BAR.match(text)
        behind = "" if bar is None else text[bar.end() :].strip()
        if bar is None or behind.startswith("-"):  # a value that is no number
            self._take(task, _TIME.sub("", text), text, now_s)
        elif behind:
            self._take(task, match_key(behind), behind, now_s)
        else:
            is_whole = (bar["num"], bar["step"]) == (bar["total"], bar["steps"])
            end = _TIME.sub("", text) if is_whole else None
            key = bar["name"], bar["total"], bar["steps"]
            self._take(task, key, text, now_s, end=end)

    def _take(self, task: TaskId, key: Hashable, text: str, now_s: float, *, end: str | None = None) -> None:
        def make() -> _Line:
            self._num_lines += 1
            made = _Line(text=text, at_s=now_s, number=self._num_lines)
            self._of_others[made.number] = made, key
            return made

        found = self._equals.setdefault(key, _Equals()).take(task, make)
        if end is not None and found.end not in (None, end):
            self._take(task, (key, end), text, now_s, end=end)
            return
        found.end = found.end or end
        found.tasks.append(task)
        found.after = max(found.after, self._newest.get(task, 0))
        if task == self._chief:
            found.text = text
            self._num_of_chief += 1
            found.position = self._num_of_chief
            self._by_position[found.position] = found
            self._of_chief.append(self._of_others.pop(found.number))
            for other in found.tasks:
                self._reach(other, found.position, before=found.number)
        elif found.position:
            self._reach(task, found.position)
        else:
            self._own[task].append(found.number)
            self._newest[task] = max(found.number, self._newest.get(task, 0))

    def _reach(self, task: TaskId, position: int, *, before: float = math.inf) -> None:
        """Notes which lines of the chief's a task has passed by printing one that came later.

        Args:
          before: The number of the first line that the task has printed after that one.
        """
        is_disputed = False
        while self._own[task] and self._own[task][0] < before:
            waiting = self._of_others.get(self._own[task].popleft())
            if waiting is not None:
                waiting[0].is_awaited, is_disputed = False, True
        for at in range(self._reached[task] + 1, position):
            line = self._by_position.get(at)
            if line is not None and task not in line.tasks:
                line.passed.add(task)
                line.is_disputed = line.is_disputed or is_disputed
        self._reached[task] = max(position, self._reached[task])

    def _is_passed(self, line: _Line) -> bool:
        return len(line.passed.union(line.tasks)) == len(self._tasks)

    def _is_of_all(self, line: _Line) -> bool:
        """Whether no task has printed another line in its place, as far as is known."""
        if len(line.tasks) == len(self._tasks):
            return True
        behind = self._tasks.difference(line.tasks, line.passed)
        return line.tasks == [self._chief] and not (line.is_disputed or any(map(self._has_own, behind)))

    def _has_own(self, task: TaskId) -> bool:
        own = self._own[task]
        while own and own[0] not in self._of_others:
            own.popleft()
        return bool(own)

    def _end_dispute(self) -> None:
        """Has lines in whose place the chief has printed another one wait for the chief no longer."""
        for number in itertools.chain(*self._own.values()):
            if (waiting := self._of_others.get(number)) is not None:
                waiting[0].is_awaited = False

    def _close(self, now_s: float) -> None:
        """Forgets what all have printed, or passed, long enough ago for another order of threads."""
        while self._open:
            line, key = self._open[0]
            is_old = self._is_passed(line) and now_s - line.shown_at_s >= WAIT_S
            is_whole = len(line.tasks) == len(self._tasks)
            if not (is_whole or is_old or not line.position or len(self._open) > MOST_WAITING):
                return
            self._open.popleft()
            self._by_position.pop(line.position, None)
            line.is_open = False
            if (equals := self._equals.get(key)) is not None and equals.forget_closed():
                del self._equals[key]

    def _is_in_doubt(self, line: _Line) -> bool:
        """Whether one of the other tasks may have printed it among the lines that it has left out."""
        others = self._tasks.difference(line.tasks)
        return any(self._left_out_at_s.get(task, -math.inf) >= line.at_s for task in others)

    def _leave_out(self, num_lines: int, now_s: float) -> None:
        self._num_left_out += num_lines
        self._left_out_since_s = min(self._left_out_since_s, now_s)

    def _tell_left_out(self, now_s: float) -> None:
        """Has the lines that were left out told behind what the chief has printed so far."""
        if self._left_out is None:
            self._left_out = _Line(text="", at_s=now_s)
            self._of_chief.append((self._left_out, None))
        self._left_out.num_left_out += self._num_left_out
        self._num_left_out, self._left_out_since_s = 0, math.inf

    def _left_out_line(self, num_lines: int = 0) -> ShownLine:
        num_lines += self._num_left_out
        self._num_left_out, self._left_out_since_s = 0, math.inf
        return ShownLine(
            text=f"… {num_lines:,} {'line' if num_lines == 1 else 'lines'} more in `{self._logs_command}`"
        )

    def _next(self, now_s: float, is_last: bool) -> _Line | None:
        """Takes out the next line to show; None where all others wait."""
        is_last = is_last or len(self._of_chief) + len(self._of_others) > MOST_WAITING
        wait_s = WAIT_S if now_s - self._begun_s >= WAIT_S else START_WAIT_S
        due_s = math.inf if is_last else now_s - wait_s
        own = self._of_chief[0][0] if self._of_chief else None
        other = next(iter(self._of_others.values()))[0] if self._of_others else None
        is_awaited = other is not None and other.is_awaited
        other_due_s = now_s - CHIEF_WAIT_S if is_awaited and not is_last else due_s
        is_whole = own is not None and (
            not self._flooded
            if own is self._left_out
            else len(own.tasks) == len(self._tasks) or (self._is_passed(own) and self._is_of_all(own))
        )
        # Each task's lines stay in their order, so what all have printed after a line of one waits with it.
        is_held = own is not None and other is not None and other.number <= own.after
        if own is not None and (is_held or not (is_whole or own.at_s <= due_s)):
            own = None
        if own is None and other is not None and other.at_s <= other_due_s:
            line, key = self._of_others.pop(other.number)
            line.is_open = False
        elif own is not None:
            line, key = self._of_chief.popleft()
        else:
            return None
        line.shown_at_s = now_s
        self._open.append((line, key))
        return line


def match_key(text: str) -> Hashable:
    """Returns what is equal in lines that say the same, but for when and, of an epoch, how long."""
    text = _STAMP.sub("", text, count=1) if _STAMP.match(text) else text
    return _TIME.sub("", text) if _EPOCH.match(text) else text


def _by_index(task: TaskId) -> tuple[str, int]:
    return task.task_type.value, task.index
