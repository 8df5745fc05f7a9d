"""`raydist metrics RUN …`: the curves of runs, each over all its attempts."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from raydist.cli.job_options import reading_options
from raydist.cli.run_argument import complete_run, note_damage, open_named
from raydist.cli.screen import output
from raydist.errors import StorageError
from raydist.outcome.status import Scope

if TYPE_CHECKING:
    from raydist.metrics.curves import MetricTable
    from raydist.storage.run_storage import RunStorage

Points = Sequence[tuple[int, float]]

_MAX_DRAWN = 1e300  # else the distance of two values may be infinite
_MARKERS = ("braille", "x", "o", "*", "+")  # told apart without colours


def charts(
    curves: Mapping[tuple[str, str], Points], *, marks: Sequence[int] = (), width: int, height: int
) -> list[str]:
    """Returns a chart over steps for each metric, by name; `val_` ones share that of their metric.

    With several tasks each has a curve of its own.

    Args:
      curves: The points `(step, value)` of each (metric, task).
      marks: Steps at which to draw a vertical line.
      width: Of a chart, in characters.
      height: In lines.
    """
    tasks = {task for _, task in curves}
    charted: dict[str, dict[str, Points]] = {}
    for (name, task), points in curves.items():
        label = name if len(tasks) == 1 else f"{name} of {task}"
        if drawn := [(step, value) for step, value in points if abs(value) <= _MAX_DRAWN]:
            charted.setdefault(name.removeprefix("val_"), {})[label] = drawn
    return [_chart(charted[name], marks, width, height) for name in sorted(charted)]


def _chart(curves: Mapping[str, Points], marks: Sequence[int], width: int, height: int) -> str:
    import plotext

    plotext.clear_figure()
    plotext.plotsize(width, height)
    for number, (label, points) in enumerate(curves.items()):
        steps, values = zip(*points, strict=True)
        plotext.plot(steps, values, label=label, marker=_MARKERS[number % len(_MARKERS)])
    shown = [step for points in curves.values() for step, _ in (points[0], points[-1])]
    for step in marks:
        if min(shown) < step < max(shown):
            plotext.vline(step)
    plotext.xlabel("step")
    drawn: str = plotext.uncolorize(plotext.build())
    return "\n".join(line.rstrip() for line in drawn.splitlines())


_MAX_WIDTH = 120
_CHART_HEIGHT = 15
_POINTS_PER_COLUMN = 2  # of a braille character


@click.command("metrics", epilog="More: `raydist guide commands`.")
@click.argument("runs", metavar="RUN…", nargs=-1, required=True, shell_complete=complete_run)
@click.option(
    "--format", "form", type=click.Choice(["table", "csv", "json"]), default="table", help="How to print it."
)
@click.option(
    "--local", is_flag=True, help="Each task's own running values, not those of all replicas together."
)
@click.option("--plot", is_flag=True, help="Draw each metric over the steps instead.")
@reading_options
def command(runs: tuple[str, ...], form: str, local: bool, plot: bool, storage: str, is_json: bool) -> None:
    """Print the metrics of runs, a line per step.

    Of several runs each line begins with the name of its run.
    """
    if plot and (is_json or form != "table"):
        other = "--json" if is_json else f"--format {form}"
        raise click.UsageError(f"--plot draws for a terminal, {other} prints for programs; give one of them.")
    from raydist.metrics import formats

    named = dict.fromkeys(runs)
    opened = {one.run: one for one in (open_named(storage, run) for run in named)}
    scope = Scope.LOCAL if local else Scope.GLOBAL
    tables = {name: _table_of(one, scope) for name, one in opened.items()}
    table = formats.together(tables)
    if is_json or form == "json":
        _print_blocks(formats.json_blocks(tables), is_json=True)
    elif form == "csv":
        _print_blocks(formats.csv_blocks(table))
    elif not table.num_rows:
        output.show(f"no metrics of {', '.join(tables)} are stored")
    elif plot:
        _draw(tables, opened)
    else:
        _print_blocks(formats.text_blocks(table))


def _table_of(opened: RunStorage, scope: Scope) -> MetricTable:
    """Returns a run's table; what is damaged is left out and told."""
    from raydist.metrics.curves import as_table
    from raydist.metrics.reading import read_columns

    note_damage(opened)
    damaged: list[StorageError] = []
    table = as_table(read_columns(opened, scope=scope, on_damage=damaged.append))
    if damaged and not table.num_rows:
        raise damaged[0]
    for error in damaged:
        output.show(f"left out: {error}", is_error=True)
    return table


def _draw(tables: Mapping[str, MetricTable], opened: Mapping[str, RunStorage]) -> None:
    from raydist.metrics.curves import curves
    from raydist.page.curves import later_trainings
    from raydist.storage.segments import read_events

    damaged: list[StorageError] = []
    is_one = len(tables) == 1
    width = min(shutil.get_terminal_size().columns, _MAX_WIDTH)
    points: dict[tuple[str, str], Points] = {}
    trainings: list[dict[str, Any]] = []
    for run, table in tables.items():
        found = curves(table, num_buckets=_POINTS_PER_COLUMN * width)
        has_tasks = len({task for _, task in found}) > 1
        for (name, task), curve in found.items():
            points[name, task if is_one else f"{run} {task}" if has_tasks else run] = curve
        if is_one:  # the fits of several would not be told apart
            trainings = later_trainings(read_events(opened[run], on_damage=damaged.append))
    marks = [one["step"] for one in trainings]
    drawn = charts(points, marks=marks, width=width, height=_CHART_HEIGHT)
    output.show("\n\n".join(drawn) or "there are no numbers to draw; see the table")
    if drawn and trainings:
        output.show("; ".join(f"{one['name']} begins after step {one['step']}" for one in trainings))


def _print_blocks(blocks: Iterable[bytes], *, is_json: bool = False) -> None:
    """Prints each block before the next is made: `| head` waits for the first alone."""
    for block in blocks:
        output.show(output.json_text(block.decode()) if is_json else block.decode(), end="")
