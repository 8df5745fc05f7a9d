"""`raydist logs RUN`: what the tasks printed, read from storage alone."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from raydist.cli.job_options import json_option, storage_option
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output
from raydist.errors import MistakeError
from raydist.spec.tasks import TaskId

if TYPE_CHECKING:
    from raydist.storage.run_storage import RunStorage

_POLL_S = 1.0


@click.command("logs")
@run_argument
@click.option("--task", metavar="TASK", help="One task, such as worker/1; all of them when omitted.")
@click.option(
    "--attempt", metavar="N", type=click.IntRange(min=0), help="An attempt; the last one when omitted."
)
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the run has ended.")
@storage_option
@json_option
def command(
    run: str, task: str | None, attempt: int | None, follow: bool, storage: str, is_json: bool
) -> None:
    """Print the logs of a run's tasks."""
    asked = TaskId.parse(task) if task is not None else None
    if follow and is_json:
        raise click.UsageError(
            "--follow and --json do not go together: JSON is one object, printed at the end"
        )
    opened = open_named(storage, run)
    run = opened.run
    followed = _Followed(opened, task=asked, attempt=attempt)
    if is_json:
        output.print_json({"run": run, "logs": followed.read_all()})
        return
    followed.print_new()
    while follow and not followed.is_over():
        time.sleep(_POLL_S)
        followed.print_new()
    if not follow:
        followed.check_found()


class _Followed:
    """The logs that were asked for, each read on from where it was left."""

    def __init__(self, storage: RunStorage, *, task: TaskId | None, attempt: int | None) -> None:
        from raydist.storage.logs import LogReader

        self._storage = storage
        self._task = task
        self._attempt = attempt
        self._readers: dict[tuple[int, TaskId], LogReader] = {}
        self._has_ended = False
        self._last_printed: tuple[int, TaskId] | None = None
        self._is_ended()  # a run that does not exist is told before its logs are missed

    def is_over(self) -> bool:
        """Whether the run had ended before the last read, so that nothing can be new."""
        had_ended, self._has_ended = self._has_ended, self._is_ended()
        return had_ended

    def print_new(self) -> None:
        for key, text in self._read_new():
            if text:
                self._print(key, text)

    def read_all(self) -> list[dict[str, object]]:
        found = self._read_new()
        self.check_found()
        return [{"attempt": attempt, "task": str(task), "text": text} for (attempt, task), text in found]

    def check_found(self) -> None:
        if not self._readers:
            what = f"task {self._task}" if self._task else "any task"
            which = "" if self._attempt is None else f" in attempt {self._attempt}"
            raise MistakeError(
                f"no log of {what}{which} is stored for {self._storage.run}; "
                f"`raydist status {self._storage.run}` shows its tasks"
            )

    def _read_new(self) -> list[tuple[tuple[int, TaskId], str]]:
        from raydist.storage.logs import LogReader, list_log_tasks

        stored = list_log_tasks(self._storage)
        attempt = (
            self._attempt if self._attempt is not None else max((number for number, _ in stored), default=0)
        )
        for number, task in stored:
            if number == attempt and self._task in (None, task) and (number, task) not in self._readers:
                self._readers[number, task] = LogReader(self._storage, task=task, attempt=number)
        return [(key, reader.read_new()) for key, reader in self._readers.items()]

    def _print(self, key: tuple[int, TaskId], text: str) -> None:
        if self._task is not None:
            click.echo(text, nl=False)
            return
        if key != self._last_printed:
            click.echo(f"==> {key[1]} (attempt {key[0]}) <==")
            self._last_printed = key
        click.echo(text, nl=not text.endswith("\n"))

    def _is_ended(self) -> bool:
        from raydist.storage.run_record import read_record

        return read_record(self._storage).state.is_terminal
