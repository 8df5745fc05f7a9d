"""What a script prints in all its tasks: the chief's lines, and what other tasks print that it does not."""

from __future__ import annotations

import collections
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

# How long a line of another task waits for the chief to print it too.
CHIEF_WAIT_S = 10.0
# And if the chief has printed a line that the task printed later. Threads may print in another order.
PASSED_WAIT_S = 2.0
# How often a script that prints faster than it is shown is told about.
LEFT_OUT_EVERY_S = 5.0
# Lines that wait; beyond, the oldest waits no longer.
MOST_WAITING = 20_000
# Different lines whose counts are kept; beyond, the oldest is forgotten.
MOST_KEYS = 40_000

# What lines of two tasks may differ in: a time at the beginning, of TensorFlow's C++ code with its thread.
_STAMP = re.compile(
    r"[IWEF]0000 00:00:\d+\.\d+ +\d+ "
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ "
    r"|\[?(?:\d{4}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?"
)
# And in a line that is written over, or Keras's line of an epoch, how long it took.
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
      tasks: Those that printed it; empty for a line of the chief's.
    """

    text: str
    tasks: tuple[TaskId, ...] = ()


@dataclass(eq=False, kw_only=True)
class _Waiting:
    """A line that tasks have printed, but not yet the chief.

    Attributes:
      number: Of all lines that have waited.
      equals: The lines with its key.
    """

    text: str
    at_s: float
    number: int
    equals: _Equals
    tasks: list[TaskId] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class _Equals:
    """The lines with one key: a task's third one is the chief's third one.

    Attributes:
      num_printed: By each task, without lines that are shown as its own.
      waiting: Those that the chief has not printed, in their order.
    """

    num_printed: collections.Counter[TaskId] = field(default_factory=collections.Counter)
    waiting: collections.deque[_Waiting] = field(default_factory=collections.deque)


class ScriptOutput:
    """Takes the lines of each task, and returns those to show. Does no I/O.

    A line of the chief's is shown at once. A line of another task is shown with its task unless the chief
    prints an equal one within `CHIEF_WAIT_S`. Equal lines are matched by their count, in any order.
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
        self._shown: list[ShownLine] = []  # since the last `take`
        self._equals: dict[Hashable, _Equals] = {}
        self._waiting: dict[int, _Waiting] = {}  # by their number, the oldest first
        self._num_waited = 0
        # By task: it printed the waiting lines with lower numbers before a line of the chief's.
        self._passed = dict.fromkeys(tasks, 0)
        self._num_left_out = 0  # and not yet told
        self._left_out_since_s = math.inf
        self._chief_left_out_at_s = -math.inf

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
            for line in part.lines:
                self._add(part.task, line, now_s)
            if part.num_left_out:
                self._leave_out(part.num_left_out, now_s)
                if part.task == self._chief:
                    self._chief_left_out_at_s = now_s

    def take(self, *, now_s: float, is_last: bool = False) -> list[ShownLine]:
        """Returns what is to be shown now; all that is left, if the tasks are gone."""
        while self._waiting:
            oldest = next(iter(self._waiting.values()))
            if not (is_last or len(self._waiting) > MOST_WAITING or self._is_due(oldest, now_s)):
                break
            self._release(oldest, now_s)
        if self._num_left_out and (is_last or now_s - self._left_out_since_s >= LEFT_OUT_EVERY_S):
            self._tell_left_out()
        shown, self._shown = self._shown, []
        return shown

    def _add(self, task: TaskId, line: PrintedLine, now_s: float) -> None:
        text = as_submitted(without_sequences(line.text)).rstrip()
        if not self._noise[task].keeps(text) or text.startswith("raydist: "):
            return
        key, text = _match_redrawn(text) if line.is_redrawn else (match_key(text), text)
        equals = self._equals.setdefault(key, _Equals())
        equals.num_printed[task] += 1
        if task == self._chief:
            self._show(text)
            if equals.waiting:
                met = equals.waiting.popleft()
                del self._waiting[met.number]
                self._passed.update({other: max(self._passed[other], met.number) for other in met.tasks})
        else:
            num_ahead = equals.num_printed[task] - equals.num_printed[self._chief]
            if num_ahead <= 0:
                self._passed[task] = self._num_waited + 1
            else:
                if num_ahead > len(equals.waiting):
                    self._num_waited += 1
                    made = _Waiting(text=text, at_s=now_s, number=self._num_waited, equals=equals)
                    self._waiting[made.number] = made
                    equals.waiting.append(made)
                equals.waiting[num_ahead - 1].tasks.append(task)
        if all(equals.num_printed[each] == equals.num_printed[self._chief] for each in self._tasks):
            del self._equals[key]
        elif len(self._equals) > MOST_KEYS:
            del self._equals[next(iter(self._equals))]

    def _is_due(self, line: _Waiting, now_s: float) -> bool:
        is_passed = any(self._passed[task] > line.number for task in line.tasks)
        return now_s - line.at_s >= (PASSED_WAIT_S if is_passed else CHIEF_WAIT_S)

    def _release(self, line: _Waiting, now_s: float) -> None:
        """Shows a line that the chief did not print."""
        del self._waiting[line.number]
        line.equals.waiting.remove(line)
        line.equals.num_printed.subtract(line.tasks)
        if self._chief_left_out_at_s >= line.at_s:  # the chief may have printed it
            self._leave_out(len(line.tasks), now_s)
        else:
            self._show(line.text, *sorted(line.tasks, key=_by_index))

    def _show(self, text: str, *tasks: TaskId) -> None:
        if self._num_left_out:
            self._tell_left_out()
        self._shown.append(ShownLine(text=text, tasks=tasks))

    def _leave_out(self, num_lines: int, now_s: float) -> None:
        self._num_left_out += num_lines
        self._left_out_since_s = min(self._left_out_since_s, now_s)

    def _tell_left_out(self) -> None:
        noun = "line" if self._num_left_out == 1 else "lines"
        text = f"… {self._num_left_out:,} {noun} more in `{self._logs_command}`"
        self._shown.append(ShownLine(text=text))
        self._num_left_out, self._left_out_since_s = 0, math.inf


def _match_redrawn(text: str) -> tuple[Hashable, str]:
    """Returns what is equal in a line that was written over, and what is shown of it.

    How far a progress bar was when it was drawn last differs between tasks.
    """
    bar = _BAR.match(text)
    if bar is None:
        return _TIME.sub("", text), text
    behind = text[bar.end() :].strip()
    if behind and not behind.startswith("-"):  # not a value that is no number
        return match_key(behind), behind
    return (bar["name"], bar["total"], bar["steps"]), text


def match_key(text: str) -> Hashable:
    """Returns what is equal in lines that say the same, but for when and, of an epoch, how long."""
    text = _STAMP.sub("", text, count=1) if _STAMP.match(text) else text
    return _TIME.sub("", text) if _EPOCH.match(text) else text


def _by_index(task: TaskId) -> tuple[str, int]:
    return task.task_type.value, task.index
