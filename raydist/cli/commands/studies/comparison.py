"""What both forms of `raydist compare` share: options, and how runs are made and printed."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from raydist.cli import running
from raydist.cli.commands.studies.short_runs import WITHOUT, Case, ShortRun, measure, study_of
from raydist.cli.job_options import AskedJob, count_option, json_option, takes_job
from raydist.cli.screen import output, standard_streams
from raydist.errors import RaydistError, RunCancelledError, StorageError
from raydist.spec.job import MODULE_FLAG, JobSpec
from raydist.storage.filesystem import Storage
from raydist.storage.studies import StudyStore


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is said of some runs.

    Attributes:
      answer: What `--json` prints; its `runs` are the rows of the CSV.
      headers, cells: The table.
      sentence: Below the table; None for nothing.
      picture: An SVG file.
    """

    answer: Mapping[str, Any]
    headers: Sequence[str]
    cells: Sequence[Sequence[object]]
    sentence: str | None
    picture: str


@dataclass(frozen=True, kw_only=True)
class Study:
    """What a command is to compare.

    Attributes:
      asked: What was given for all runs.
      num_steps: After which each run is stopped.
      files: The files to write, by the option that names each.
    """

    asked: AskedJob
    num_steps: int
    files: Mapping[str, Path]
    is_json: bool


def study_options(*, without: Iterable[str] = ()) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Gives a command a `Study`: the job, options of its own and those of a run."""

    def add(command: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(command)
        def function(
            job: AskedJob,
            steps: int,
            csv_path: Path | None,
            plot_path: Path | None,
            is_json: bool,
            **own: object,
        ) -> int:
            named = {"--csv": csv_path, "--plot": plot_path}
            files = {option: path for option, path in named.items() if path is not None}
            return command(Study(asked=job, num_steps=steps, files=files, is_json=is_json), **own)

        added: Callable[..., int] = function
        for one in (
            json_option,
            click.option(
                "--plot",
                "plot_path",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Also draw it, as SVG.",
            ),
            click.option(
                "--csv", "csv_path", metavar="FILE", type=click.Path(path_type=Path), help="Also write a CSV."
            ),
            count_option(
                "--steps",
                "Steps after which each run is stopped, once it has trained for 10 s.",
                metavar="STEPS",
                default=200,
            ),
        ):
            added = one(added)
        return takes_job(without=[*WITHOUT, *without])(added)

    return add


def run_each(
    study: Study, cases: Sequence[Case], compare: Callable[[str, Sequence[ShortRun]], Comparison]
) -> int:
    """Makes each run, prints what they say, and returns the exit code.

    Ctrl-C and a run that fails end it, after what was found up to then is printed.
    """
    is_json = study.is_json
    for option, path in study.files.items():  # before there is anything to lose
        _check_writable(path, option=option)
    standard_streams.tolerate_failures()
    found: list[ShortRun] = []
    error: RaydistError | KeyboardInterrupt | None = None
    try:
        with output.stdout_kept_for_json(is_json), running.interrupts():
            for case in cases:
                found.append(measure(study.asked, case, first=cases[0].plan.job, num_steps=study.num_steps))
    except (RaydistError, KeyboardInterrupt) as ended:
        if not found:
            raise
        error = ended
    comparison = compare(study.asked.target.removeprefix(MODULE_FLAG), found)
    rows = comparison.answer["runs"]
    texts = {"--csv": output.csv_text(rows[0], [row.values() for row in rows]), "--plot": comparison.picture}
    for option, path in study.files.items():
        output.write_file(path, texts[option], option=option)
    try:
        _keep_for_page(comparison, cases[0].plan.job)
    except StorageError as unkept:
        error = error or unkept
    if isinstance(error, KeyboardInterrupt):
        output.show(f"stopped by Ctrl-C after {len(found)} of {len(cases)} runs", is_error=True)
    if not is_json:
        output.print_table(comparison.headers, comparison.cells)
        if comparison.sentence is not None:
            output.show(comparison.sentence)
    elif not isinstance(error, RaydistError):
        output.print_json(comparison.answer)
    if isinstance(error, RaydistError):
        return output.print_raydist_error(error, is_json=is_json, found=comparison.answer)
    return 0 if error is None else RunCancelledError.exit_code


def _keep_for_page(comparison: Comparison, job: JobSpec) -> None:
    told = {name: getattr(comparison, name) for name in ("headers", "cells", "sentence", "picture")}
    StudyStore(Storage.open(job.storage)).keep_comparison(study_of(job), told)


def _check_writable(path: Path, *, option: str) -> None:
    place = path if path.exists() else path.parent
    if not place.exists() or path.is_dir() or not os.access(place, os.W_OK):
        code = errno.ENOENT if not place.exists() else errno.EISDIR if path.is_dir() else errno.EACCES
        raise output.unwritable(path, os.strerror(code), option)
