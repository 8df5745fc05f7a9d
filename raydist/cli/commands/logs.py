"""`raydist logs RUN`: what the tasks printed, read from storage alone."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

import click

from raydist.cli.job_options import count_option, reading_options
from raydist.cli.run_argument import note_damage, open_named, run_argument, wait_option
from raydist.cli.screen import output, run_view
from raydist.errors import MistakeError, SpecError, StorageError
from raydist.spec.log_noise import NoiseFilter
from raydist.spec.quantities import parse_duration
from raydist.spec.tasks import AnyTask, TaskId, TaskType, parse_any_task
from raydist.spec.text import as_submitted, coloured_line, without_sequences

if TYPE_CHECKING:
    from raydist.storage.run_storage import RunStorage
    from raydist.storage.timed_logs import LogLine, TimedLogReader

_POLL_S = 1.0


class _SinceType(click.ParamType[float]):
    """A Unix time, given as a duration before now or as a date and time of this machine's time zone."""

    name = "since"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return datetime.fromisoformat(str(value)).timestamp()
        except (ValueError, OverflowError):
            pass
        try:
            seconds = parse_duration("--since", value)
            if seconds < 0:
                raise SpecError(f"--since is {value!r}; write how long ago, such as 5m")
            return time.time() - seconds
        except SpecError as error:
            raise SpecError(f"{error}, or a time such as 2026-11-21T09:30") from error


@click.command("logs", epilog="More: `raydist guide commands`.")
@run_argument
@click.option("--task", metavar="TASK", help="One task, such as worker/1; all of them when omitted.")
@count_option("--attempt", "An attempt; the last one when omitted.", minimum=0)
@click.option("-f", "--follow", is_flag=True, help="Continue printing until the run has ended.")
@count_option("--tail", "The last N lines.", minimum=0)
@click.option(
    "--since",
    "since_s",
    metavar="TIME",
    type=_SinceType(),
    help="Lines of the last 90s, 5m, 2h, or since a time such as 2026-11-21T09:30.",
)
@click.option("--time", "with_time", is_flag=True, help="Print the time of each line.")
@click.option("--all", "is_all", is_flag=True, help="Print TensorFlow's start-up messages too.")
@click.option("--raw", "is_raw", is_flag=True, help="Print the lines as they are, with control sequences.")
@wait_option
@reading_options
def command(
    run: str,
    task: str | None,
    attempt: int | None,
    follow: bool,
    tail: int | None,
    since_s: float | None,
    with_time: bool,
    is_all: bool,
    is_raw: bool,
    wait_s: float,
    storage: str,
    is_json: bool,
) -> None:
    """Print the logs of a run's tasks, merged by time.

    --json has each task's text by itself, with TensorFlow's start-up messages.
    """
    if follow and is_json:
        raise click.UsageError(
            "--follow and --json do not go together: JSON is one object, printed at the end"
        )
    asked = parse_any_task(task) if task is not None else None
    opened = open_named(storage, run, wait_s=wait_s if follow else 0.0)
    is_all = is_all or is_json
    logs = _Logs(storage=opened, task=asked, attempt=attempt, tail=tail, since_s=since_s, is_all=is_all)
    if follow:
        logs.is_over()  # of a run that has ended by now, the next read is the last
    else:
        note_damage(opened)
    if is_json:
        lines = logs.read_new(is_last=True)
        logs.check_found()
        output.print_json({"run": opened.run, "logs": _texts(logs, lines)})
        return
    printer = _Printer(has_prefix=asked is None, with_time=with_time, is_raw=is_raw)
    printer.print(logs.read_new(is_last=not follow))
    while follow and not logs.is_over():
        time.sleep(_POLL_S)
        printer.print(logs.read_new(is_last=logs.has_ended))
    if not follow:
        logs.check_found()
        if not printer.has_printed and logs.num_left_out:
            output.show(
                f"TensorFlow's start-up messages alone ({logs.num_left_out}); --all shows them", is_error=True
            )


@dataclass(kw_only=True)
class _Logs:
    """The logs that were asked for, each read on from where it was left.

    Attributes:
      tail: How many lines the next read shows at most; None for all.
      has_ended: Whether the run had ended when it was last looked at.
      readers: By attempt and task, as are the filters of `noise`.
    """

    storage: RunStorage
    task: AnyTask | None
    attempt: int | None
    tail: int | None
    since_s: float | None
    is_all: bool
    has_ended: bool = False
    readers: dict[tuple[int, AnyTask], TimedLogReader] = field(default_factory=dict)
    noise: dict[tuple[int, AnyTask], NoiseFilter] = field(default_factory=dict)

    @property
    def num_left_out(self) -> int:
        return sum(noise.num_left_out for noise in self.noise.values())

    def is_over(self) -> bool:
        """Whether the run had ended before the last read, so that nothing can be new."""
        had_ended, self.has_ended = self.has_ended, self._is_ended()
        return had_ended

    def check_found(self) -> None:
        if not self.readers:
            what = f"task {self.task}" if self.task else "any task"
            which = "" if self.attempt is None else f" in attempt {self.attempt}"
            raise MistakeError(
                f"no log of {what}{which} is stored for {self.storage.run}; "
                f"`{self.storage.command('status')}` shows its tasks"
            )

    def read_new(self, *, is_last: bool) -> list[LogLine]:
        from raydist.storage.timed_logs import read_merged

        self._find_readers()
        lines = [line for line in read_merged(self.readers.values(), is_last=is_last) if self._keeps(line)]
        tail, self.tail = self.tail, None  # what comes later is all shown
        return lines if tail is None else lines[len(lines) - tail :] if tail < len(lines) else lines

    def _find_readers(self) -> None:
        from raydist.storage.logs import list_log_tasks
        from raydist.storage.timed_logs import TimedLogReader

        stored = list_log_tasks(self.storage)
        newest = max((number for number, _ in stored), default=0)
        attempt = newest if self.attempt is None else self.attempt
        for number, task in stored:
            if number == attempt and self.task in (None, task) and (number, task) not in self.readers:
                has_gpus = isinstance(task, TaskId) and task.task_type in self._types_with_gpus
                noise = self.noise[number, task] = NoiseFilter(has_gpus=has_gpus)
                reader = TimedLogReader(self.storage, task=task, attempt=number)
                reader.skip_to(
                    num_lines=self.tail,
                    since_s=self.since_s,
                    keep=(lambda line: True) if self.is_all else noise.keeps_alone,
                )
                self.readers[number, task] = reader

    def _keeps(self, line: LogLine) -> bool:
        is_shown = self.is_all or self.noise[line.attempt, line.task].keeps(line.text)
        return is_shown and (self.since_s is None or line.at_s is None or line.at_s >= self.since_s)

    @functools.cached_property
    def _types_with_gpus(self) -> Container[TaskType]:
        """The types of the tasks with GPUs; all of them where a damaged record does not tell."""
        from raydist.storage.run_record import read_record

        try:
            roles = read_record(self.storage).plan.get("roles", ())
        except (MistakeError, StorageError):
            return tuple(TaskType)
        names = [role.get("task_type") for role in roles if isinstance(role, dict) and role.get("gpus")]
        return tuple(each for each in TaskType if each.value in names)

    def _is_ended(self) -> bool:
        from raydist.storage.run_record import read_record

        return read_record(self.storage).state.is_terminal


class _Printer:
    """Prints lines as they come.

    Attributes:
      has_printed: Whether there was any line yet.
    """

    def __init__(self, *, has_prefix: bool, with_time: bool, is_raw: bool) -> None:
        self._has_prefix = has_prefix
        self._with_time = with_time
        self._is_raw = is_raw
        self._attempt: int | None = None
        self.has_printed = False

    def print(self, lines: Iterable[LogLine]) -> None:
        for line in lines:
            if self._attempt not in (None, line.attempt):
                output.show(f"==> attempt {line.attempt} <==")
            self._attempt, self.has_printed = line.attempt, True
            at = f"{run_view.local_time(line.at_s)} " if self._with_time else ""
            prefix = f"[{line.task}] " if self._has_prefix else ""
            output.show(f"{at}{prefix}{self._shown(line.text)}", is_raw=True)

    def _shown(self, text: str) -> str:
        if self._is_raw:
            return text
        text = as_submitted(text)
        return coloured_line(text) if sys.stdout.isatty() else without_sequences(text)


def _texts(logs: _Logs, lines: Iterable[LogLine]) -> list[dict[str, object]]:
    texts: dict[tuple[int, AnyTask], list[str]] = {key: [] for key in logs.readers}
    for line in lines:
        texts[line.attempt, line.task].append(f"{as_submitted(line.text)}\n")
    return [
        {"attempt": attempt, "task": str(task), "text": "".join(text)}
        for (attempt, task), text in texts.items()
    ]
