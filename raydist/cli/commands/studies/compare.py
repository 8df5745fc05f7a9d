"""`raydist compare JOB`: speed and loss of a job with several numbers of workers, or under strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from raydist.cli.commands.studies.comparison import Comparison, Study, run_each, study_options
from raydist.cli.commands.studies.scale import compare_workers
from raydist.cli.commands.studies.short_runs import Case, ShortRun, case_of
from raydist.cli.job_options import AskedJob, RunCommand, chosen_names
from raydist.runs.pictures import loss_picture
from raydist.runs.strategies_compared import StrategyRun, compared, staleness
from raydist.spec.job import Strategy

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
@click.option(
    "--workers",
    "workers_text",
    metavar="N[,N]",
    help="Numbers of workers to compare, such as 1,2,4; with --strategies those of each run.",
)
@click.option(
    "--strategies",
    metavar="NAME,NAME",
    help="Strategies to compare, such as multi_worker_mirrored,parameter_server.",
)
@study_options(without=["workers"])
def command(study: Study, workers_text: str | None, strategies: str | None) -> int:
    """Measure a job with several numbers of workers, or under several strategies.

    Stops each run after some steps. For numbers of workers it begins with a run on one device without
    distribution, and prints speed, shares of all-reduce and input, memory and cost, and what bounds the job.

    For strategies it prints speed, the loss at equal examples and at equal time, and how old the weights of
    a gradient may be. A strategy for one host has one worker, parameter_server one ps unless --ps says more.

    \b
    Example:
      raydist compare jobs/digits.py --workers 1,2,4 --plot scale.svg
      raydist compare jobs/sync_vs_async.py --strategies mirrored,parameter_server
    """
    if strategies is None:
        if workers_text is None:
            raise click.UsageError("write what to compare: --workers 1,2,4 or --strategies NAME,NAME")
        return compare_workers(study, workers_text)
    options = dict(study.asked.options)
    if "strategy" in options:
        raise click.UsageError("--strategy and --strategies do not go together; name all in --strategies")
    if workers_text is not None:
        options["workers"] = workers_text
    asked = dataclasses.replace(study.asked, options=options)
    names = chosen_names(strategies, _NAMES, option="--strategies")
    return run_each(
        dataclasses.replace(study, asked=asked),
        [_case(asked, Strategy(name)) for name in names],
        _comparison,
    )


def _case(asked: AskedJob, strategy: Strategy) -> Case:
    own: dict[str, Any] = {"strategy": strategy.value}
    if strategy is Strategy.PARAMETER_SERVER:
        own["ps"] = asked.options.get("ps", 1)
    else:
        own["ps"] = 0
    if strategy.is_single_host:
        own["workers"] = 1
    return case_of(asked, strategy.value, **own)


def _comparison(job: str, found: Sequence[ShortRun]) -> Comparison:
    runs = [_strategy_run(one) for one in found]
    answer = compared(runs)
    sentence = None
    if answer["seconds"] is not None:
        examples = "unknown" if answer["examples"] is None else answer["examples"]
        seconds = f"{answer['seconds']:.1f} s since the first report"
        sentence = f"equal examples: {examples}; equal time: {seconds}"
    return Comparison(
        answer={"job": job, **answer},
        headers=list(_COLUMNS),
        cells=[[row[key] for key in _COLUMNS.values()] for row in answer["runs"]],
        sentence=sentence,
        picture=loss_picture(Path(job).name, runs),
    )


def _strategy_run(one: ShortRun) -> StrategyRun:
    plan = one.plan
    stale = staleness(plan.strategy, workers=plan.num_workers)
    return StrategyRun(measurement=one.measurement, curve=one.curve, staleness=stale)
