"""`raydist compare JOB --strategies A,B`: speed and loss of a job under several strategies."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from raydist.cli.commands.studies.short_runs import (
    SET_HERE,
    JobRuns,
    csv_text,
    run_each,
    steps_option,
    write_file,
)
from raydist.cli.job_options import (
    RunCommand,
    given_options,
    job_options,
    json_option,
    module_option,
    target_of,
)
from raydist.cli.screen import output
from raydist.errors import MistakeError
from raydist.runs.strategies_compared import StrategyRun, compared, staleness
from raydist.spec.job import Strategy
from raydist.spec.params import ParamTexts

if TYPE_CHECKING:
    from raydist.planning.plan import Plan

_NAMES = [one.value for one in Strategy if one is not Strategy.AUTO]
_COLUMNS = {
    "strategy": "strategy",
    "workers": "workers",
    "examples/s": "examples_per_s",
    "loss at equal examples": "loss_at_equal_examples",
    "loss at equal time": "loss_at_equal_time",
    "staleness": "staleness",
}


@click.command("compare", cls=RunCommand, epilog="More: `raydist guide scaling`.")
@click.argument("job", metavar="JOB")
@module_option
@click.option(
    "--strategies",
    metavar="NAME,NAME",
    required=True,
    help="Strategies to run the job under, such as multi_worker_mirrored,parameter_server.",
)
@steps_option
@click.option("--csv", "csv_path", metavar="FILE", type=click.Path(path_type=Path), help="Also write a CSV.")
@job_options(without=({*SET_HERE} - {"workers"}) | {"strategy"})
@json_option
def command(
    job: str,
    is_module: bool,
    strategies: str,
    steps: int,
    csv_path: Path | None,
    config: Path | None,
    param_texts: tuple[str, ...],
    is_json: bool,
    **options: object,
) -> int:
    """Measure a job under several strategies.

    Stops each run after some steps, and prints speed, the loss at equal examples and at equal time, and how
    old the weights of a gradient may be. A strategy for one host has one worker, and parameter_server one ps
    unless --ps says more.

    \b
    Example:
      raydist compare jobs/sync_vs_async.py --strategies mirrored,parameter_server
    """
    given = given_options(options)
    runs = JobRuns(
        job=target_of(job, is_module=is_module),
        config=config,
        params=ParamTexts.parse(param_texts),
        options=given,
    )
    cases = [(one.value, *_planned(runs, one)) for one in strategies_of(strategies)]
    found: list[StrategyRun] = []

    def measure(name: str, own: dict[str, Any], plan: Plan) -> None:
        measurement, curve = runs.measure(name, plan, study=cases[0][2].job.name, num_steps=steps, **own)
        stale = staleness(plan.strategy, workers=plan.num_workers, ps_staleness=plan.job.ps_staleness)
        found.append(StrategyRun(measurement=measurement, curve=curve, staleness=stale))

    def show(*, as_json: bool) -> None:
        _show(found, job=job, csv_path=csv_path, is_json=as_json)

    return run_each(cases, measure, show=show, is_json=is_json)


def strategies_of(text: str) -> list[Strategy]:
    """Returns the strategies that `a,b` names, each once; raises MistakeError for others."""
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in _NAMES:
            near = difflib.get_close_matches(name, _NAMES, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"write some of {', '.join(_NAMES)}"
            raise MistakeError(f"--strategies names {name!r}, which is no strategy; {remedy}")
    return [Strategy(name) for name in names]


def _planned(runs: JobRuns, strategy: Strategy) -> tuple[dict[str, Any], Plan]:
    own: dict[str, Any] = {"strategy": strategy.value}
    if strategy is Strategy.PARAMETER_SERVER:
        own["ps"] = runs.options.get("ps", 1)
    else:
        own |= {"ps": 0, "ps_staleness": 0}
    if strategy.is_single_host:
        own["workers"] = 1
    return own, runs.plan(**own)


def _show(found: Sequence[StrategyRun], *, job: str, csv_path: Path | None, is_json: bool) -> None:
    answer = compared(found)
    rows = answer["runs"]
    if csv_path is not None:
        write_file(csv_path, csv_text(rows), option="--csv")
    if is_json:
        output.print_json({"job": job, **answer})
        return
    output.print_table(list(_COLUMNS), [[row[key] for key in _COLUMNS.values()] for row in rows])
    if answer["seconds"] is not None:
        examples = "unknown" if answer["examples"] is None else answer["examples"]
        seconds = f"{answer['seconds']:.1f} s since the first report"
        output.show(f"equal examples: {examples}; equal time: {seconds}")
