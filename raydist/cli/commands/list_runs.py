"""`raydist list`: the runs that are kept on a storage."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from raydist.cli.job_options import count_option, reading_options
from raydist.cli.screen import output, run_view
from raydist.cli.screen.progress import duration
from raydist.errors import MistakeError
from raydist.outcome.codec import as_plain
from raydist.outcome.status import RunState
from raydist.spec.best import Direction, direction_of
from raydist.spec.params import shown_params
from raydist.spec.text import suggest

if TYPE_CHECKING:
    from raydist.storage.filesystem import Storage
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_removal import DamagedRecord, Listing

_LIMIT = 50
# What is printed of a run, as it is for one whose record is damaged.
_UNKNOWN: dict[str, Any] = {
    **dict.fromkeys(("run", "job", "study", "state", "strategy", "keras", "attempts", "steps", "best")),
    **dict.fromkeys(("metrics", "storage", "error", "created_at_s", "duration_s")),
    **{"attempts": 0, "steps": 0, "metrics": {}},
}
_COLUMNS = ("run", "state", "job", "strategy", "attempts", "steps", "best", "started", "duration")
_MORE_COLUMNS = ("study", "keras", "storage")
_NOT_COLUMNS = ("metrics", "params", "error", "created_at_s", "duration_s")


@click.command("list", epilog="More: `raydist guide commands`.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in RunState], case_sensitive=False),
    help="Runs in this state; can be repeated.",
)
@click.option("--job", metavar="JOB", help="Runs of this job: cifar, cifar.py, cifar.py:train or a pattern.")
@click.option("--study", metavar="NAME", help="Runs of this study, such as the trials of a search.")
@count_option("--limit", "How many at most; 0 for all.", minimum=0, default=_LIMIT)
@click.option(
    "--sort", metavar="METRIC", help="The best first by this metric, which gets a column, not the newest."
)
@click.option("--params", "with_params", is_flag=True, help="Add a column for each param.")
@click.option(
    "--columns",
    metavar="NAME,…",
    help="Columns to print: those that are printed otherwise, study, keras, storage, params and metrics.",
)
@reading_options
def command(
    states: tuple[str, ...],
    job: str | None,
    study: str | None,
    limit: int,
    sort: str | None,
    with_params: bool,
    columns: str | None,
    storage: str,
    is_json: bool,
) -> None:
    """List runs, the newest first.

    \b
    Example:
      raydist list --job cifar --sort val_accuracy --limit 5
    """
    from raydist.storage.filesystem import Storage
    from raydist.storage.run_removal import list_runs

    opened = Storage.open(storage)
    most = limit or None
    listing = list_runs(opened, limit=None if sort else most, matches=_matcher(states, job, study))
    goal = _Goal.of(opened, study=study, sort=sort)
    if sort is not None and listing.runs:
        listing = goal.sorted(listing, limit=most)
    if is_json:
        runs = [_described(run) for run in listing.runs]
        told = {"num_known": listing.num_known, "is_complete": listing.is_complete}
        output.print_json({"storage": opened.uri(), "runs": runs, **told})
        return
    if not listing.runs:
        asked = " that match" if states or job or study else ""
        folder = opened.local_path()
        why = "" if folder is None or folder.is_dir() else ", which does not exist"
        output.show(f"no runs{asked} in {opened.uri()}{why}")
        return
    chosen = _COLUMNS if columns is None else [name.strip() for name in columns.split(",")]
    chosen = [*chosen, *([sort] if sort is not None and sort not in chosen else [])]
    _print(listing, goal, columns=chosen, with_params=with_params)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Goal:
    """The metric that runs are compared by: that of --sort, else that of the study's search.

    Attributes:
      values: The best values of a search's trials that have ended, where the metric is the search's.
    """

    metric: str | None
    direction: Direction
    values: Mapping[str, float]

    @classmethod
    def of(cls, storage: Storage, *, study: str | None, sort: str | None) -> _Goal:
        from raydist.storage.studies import StudyStore

        store = StudyStore(storage)
        searched = None if study is None else store.compared_by(study)
        if study is None or searched is None or sort not in (None, searched[0]):
            direction = None if sort is None else direction_of(sort)
            return cls(metric=sort, direction=direction or Direction.HIGHEST, values={})
        return cls(metric=searched[0], direction=searched[1], values=store.values(study))

    def value(self, record: RunRecord | DamagedRecord) -> float | None:
        from raydist.page.run_list import value_of
        from raydist.storage.run_record import RunRecord

        return value_of(record, self.metric, self.values) if isinstance(record, RunRecord) else None

    def sorted(self, listing: Listing, *, limit: int | None) -> Listing:
        """Returns the runs, the best first, and those without a value last."""
        sign = -1.0 if self.direction is Direction.HIGHEST else 1.0

        def rank(record: RunRecord | DamagedRecord) -> float:
            value = self.value(record)
            return math.inf if value is None else sign * value

        if all(map(math.isinf, map(rank, listing.runs))):
            known = {name for one in listing.runs for name in _described(one)["metrics"]}
            _check_columns([str(self.metric)], known=known)
        runs = sorted(listing.runs, key=rank)[:limit]
        return dataclasses.replace(listing, runs=tuple(runs), is_complete=len(runs) == len(listing.runs))


def _check_columns(columns: Iterable[str], *, known: Collection[str]) -> None:
    for name in columns:
        if name not in known or name in _NOT_COLUMNS:
            shown = [one for one in known if one not in _NOT_COLUMNS]
            raise MistakeError(f"no run that is listed has {name!r}; {suggest(name, sorted(shown))}")


def _matcher(
    states: Collection[str], job: str | None, study: str | None
) -> Callable[[RunRecord], bool] | None:
    if not states and job is None and study is None:
        return None

    def matches(record: RunRecord) -> bool:
        return (
            (not states or record.state.value in states)
            and (job is None or _is_of(record, job))
            and (study is None or record.spec.get("study") == study)
        )

    return matches


def _is_of(record: RunRecord, job: str) -> bool:
    """Whether the job is named by its text, its file, its file's name or that without its ending."""
    text = run_view.job_text(record)
    if text is None:
        return False
    where = PurePosixPath(text.partition(":")[0])
    return any(fnmatch.fnmatchcase(one, job) for one in (text, str(where), where.name, where.stem))


def _described(record: RunRecord | DamagedRecord) -> dict[str, Any]:
    from raydist.storage.run_record import RunRecord

    told = {key: as_plain(getattr(record, key, unknown)) for key, unknown in _UNKNOWN.items()}
    if isinstance(record, RunRecord):
        told |= {"job": run_view.job_text(record), "duration_s": run_view.duration_s(record)}
        told["study"] = record.spec.get("study")
        return {**told, "params": shown_params(record.spec)}
    return {**told, "params": {}}


def _print(listing: Listing, goal: _Goal, *, columns: Sequence[str], with_params: bool) -> None:
    from raydist.storage.run_record import RunRecord

    cells = []
    for record in listing.runs:
        told = _described(record)
        told["started"] = run_view.local_time(told["created_at_s"])
        told["best"] = run_view.best_text(record.best) if isinstance(record, RunRecord) else None
        told["duration"] = None if told["duration_s"] is None else duration(told["duration_s"])
        value = goal.value(record)
        if goal.metric is not None and value is not None:
            told["metrics"] = {**told["metrics"], goal.metric: value}
            told["best"] = f"{goal.metric} {value:.4g}"
        # A column of its own wins over a param, a param over a metric of that name.
        cells.append({**told["metrics"], **told["params"], **told})
    params = dict.fromkeys(name for cell in cells for name in cell["params"])
    columns = [*columns, *(params if with_params else ())]
    _check_columns(columns, known={*_COLUMNS, *_MORE_COLUMNS, *(name for cell in cells for name in cell)})
    output.print_table(columns, [[cell.get(name) for name in columns] for cell in cells])
    for record in listing.runs:
        if not isinstance(record, RunRecord):
            output.show(record.error.message)
    if not listing.is_complete:
        output.show(f"{len(listing.runs)} of {listing.num_known} runs; --limit 0 shows all")
