"""`raydist search JOB`: trains a job with many params, and shows which are best."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from raydist.cli.job_options import (
    AskedJob,
    RunCommand,
    count_option,
    json_option,
    takes_job,
)
from raydist.cli.screen import output, standard_streams
from raydist.errors import RaydistError, RunCancelledError, SpecError
from raydist.spec.best import Direction, direction_of
from raydist.spec.text import counted
from raydist.tune.space import Space, parse_space
from raydist.tune.trainable import check_installed

if TYPE_CHECKING:
    from raydist.tune.study import Study, TrialRow

_SCHEDULERS = ("none", "asha")
_WIDTH = 10  # of a number in the table that grows


@click.command("search", cls=RunCommand, epilog="More: `raydist guide search`.")
@takes_job(without=("name", "resume", "detach"))
@count_option("--num", "Trials with random params.")
@click.option("--metric", metavar="NAME", help="Metric by which trials are compared, such as val_accuracy.")
@click.option(
    "--mode",
    type=click.Choice([one.value for one in Direction]),
    help="Which values of the metric are better; by its name when omitted.",
)
@click.option(
    "--scheduler",
    type=click.Choice(_SCHEDULERS),
    default="none",
    show_default=True,
    help="What stops trials early: asha stops those that are behind the others after as many epochs.",
)
@count_option("--grace", "Epochs that each trial gets before asha may stop it.", metavar="EPOCHS", default=1)
@count_option("--parallel", "Trials at a time; as many as have a core for each of their CPUs when omitted.")
@count_option(
    "--seeds",
    "Train each combination with N seeds, from --seed on, and show mean and spread of each metric.",
    minimum=2,
)
@click.option(
    "--resume",
    "is_resumed",
    type=bool,
    metavar="",
    default=False,
    help="Continue the study that the same command began, the newest one or that of --study.",
)
@json_option
@click.option("--csv", "is_csv", is_flag=True, help="Print the trials as CSV to stdout, nothing else.")
def command(
    job: AskedJob,
    num: int | None,
    metric: str | None,
    mode: str | None,
    scheduler: str,
    grace: int,
    parallel: int | None,
    seeds: int | None,
    is_resumed: bool,
    is_json: bool,
    is_csv: bool,
) -> int:
    """Train JOB with many params, and show which are best.

    `-p KEY=LOW..HIGH` takes any number between two, `-p KEY=log:LOW..HIGH` each power of ten as often as
    another, `-p KEY=A,B,C` one of the values, and `-p KEY=VALUE` the same for all. Needs raydist[tune].

    \b
    Example:
      raydist search jobs/cifar.py -p learning_rate=log:1e-4..1e-1 --num 20 \\
        --metric val_accuracy --scheduler asha
      raydist search jobs/cifar.py --seeds 5
    """
    from raydist import api

    check_installed()
    packed = api.pack_job(job.target, config=job.config, params=None, options=job.options)
    space = parse_space(job.params, packed.request.job.params)
    direction = _direction(metric, mode)
    _check(space, num=num, metric=metric, scheduler=scheduler, seeds=seeds)
    standard_streams.tolerate_failures()
    from raydist.tune.search import run_search
    from raydist.tune.tuner import Search

    search = Search(
        packed=packed,
        space=space,
        num=num or 0,
        metric=metric,
        direction=direction,
        scheduler=scheduler,
        grace=grace,
        parallel=parallel,
        seeds=seeds or 0,
        study=packed.request.job.study,
        is_resumed=is_resumed,
    )
    screen = sys.stderr if is_json or is_csv else sys.stdout
    table = _GrowingTable(space, metric=metric, has_seeds=seeds is not None, screen=screen)
    with output.stdout_kept_for_json(is_json or is_csv):
        found = run_search(search, tell=lambda text: output.show(text, stream=screen), show=table.add)
    if is_json:
        output.print_json(found.as_dict())
    elif is_csv:
        _print_csv(found)
    _print_end(found, screen, with_table=not is_csv and not is_json)
    return _exit_code(found)


def _direction(metric: str | None, mode: str | None) -> Direction:
    if mode is not None or metric is None:
        return Direction(mode or Direction.LOWEST.value)
    direction = direction_of(metric)
    if direction is None:
        raise SpecError(
            f"metric is {metric!r}, and that name does not say which values are better; add --mode max or "
            "--mode min"
        )
    return direction


def _check(space: Space, *, num: int | None, metric: str | None, scheduler: str, seeds: int | None) -> None:
    """Raises SpecError for options that do not go together."""
    if metric is None and (space.dimensions or not seeds):
        raise SpecError(
            "metric is not given; name the one to compare trials by, such as --metric val_accuracy"
        )
    if metric is None and scheduler != "none":
        raise SpecError(f"scheduler is {scheduler}, which compares trials; name their metric with --metric")
    if num is None and space.num_points is None:
        raise SpecError("num is not given, and a range has no end; say how many trials with --num 20")
    if num is not None and not space.dimensions:
        raise SpecError(
            f"num is {num}, but all trials would be the same; give a param several values, such as "
            "-p KEY=A,B or -p KEY=LOW..HIGH, or use --seeds"
        )
    if num is not None and space.num_points is not None:
        raise SpecError(
            f"num is {num}, but the values make {space.num_points} combinations, which are all tried; leave "
            "--num out, or give a range"
        )
    if num is None and not space.dimensions and not seeds:
        raise SpecError("there is nothing to search; give a param several values, or use --seeds")


class _GrowingTable:
    """Prints each trial as it ends, below the names of the columns."""

    def __init__(self, space: Space, *, metric: str | None, has_seeds: bool, screen: TextIO) -> None:
        names = [*space.dimensions, *(["seed"] if has_seeds else []), "epochs"]
        self._names = [*names, *([] if metric is None else [metric])]
        self._metric = metric
        self._screen = screen
        self._has_header = False

    def add(self, row: TrialRow) -> None:
        own = {**row.params, "seed": row.seed, "epochs": row.epochs}
        if self._metric is not None:
            own[self._metric] = row.value
        if not self._has_header:
            self._has_header = True
            self._show("run".ljust(len(row.run)), self._names)
        told = f"  {row.error.message}" if row.error is not None else ""
        self._show(row.run, [own[name] for name in self._names], told)

    def _show(self, first: str, cells: Sequence[Any], told: str = "") -> None:
        texts = [
            output.cell(value).rjust(max(_WIDTH, len(name)))
            for value, name in zip(cells, self._names, strict=True)
        ]
        output.show("  ".join([first, *texts]) + told, stream=self._screen)


def _print_csv(study: Study) -> None:
    metrics = list(dict.fromkeys(name for trial in study.trials for name in trial.metrics))
    more = [name for name in metrics if name != study.metric]
    rows = [[*study.cells(trial), *(trial.metrics.get(name) for name in more)] for trial in study.ranked]
    output.show(output.csv_text([*study.columns(), *more], rows), end="")


def _print_end(study: Study, screen: TextIO, *, with_table: bool) -> None:
    def show(text: str) -> None:
        output.show(text, stream=screen)

    if with_table and study.metric is not None and study.trials:
        show("")
        for line in output.table_lines(study.columns(), [study.cells(one) for one in study.ranked]):
            show(line)
    if with_table and any(trial.seed is not None for trial in study.trials):
        show("")
        for line in output.table_lines(*_spread_table(study)):
            show(line)
    if study.best is not None:
        show(f"best {study.best.run}: {study.metric} {study.best.value:.6g}")
    if study.is_interrupted:
        show(
            f"stopped, {len(study.trials)} of {study.num_trials} trials had begun; the same command with "
            f"--study {study.name} --resume continues"
        )
    show(f"next: raydist list --study {study.name} --params --storage {shlex.quote(study.storage)}")


def _spread_table(study: Study) -> tuple[list[str], list[list[Any]]]:
    spreads = study.spreads()
    params = list(dict.fromkeys(name for one in spreads for name in one.params))
    headers = [*params, "metric", "trials", "mean", "deviation", "lowest", "highest"]
    rows = [
        [
            *(one.params.get(name) for name in params),
            *(one.metric, one.num_trials, one.mean, one.deviation, one.lowest, one.highest),
        ]
        for one in spreads
    ]
    return headers, rows


def _exit_code(study: Study) -> int:
    if study.is_interrupted:
        return RunCancelledError.exit_code
    if not study.failed:
        return 0
    first = study.failed[0]
    assert first.error is not None
    count = f"{len(study.failed)} of {counted(len(study.trials), 'trial')} failed, first {first.run}"
    again = f"the same command with --study {study.name} --resume runs what failed again"
    error: RaydistError = first.error.raised_as(f"{count}: {first.error.message}; {again}")
    return output.print_raydist_error(error, is_json=False) or 1
