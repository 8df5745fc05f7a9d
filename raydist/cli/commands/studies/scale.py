"""`raydist scale JOB --workers 1,2,4`: how much faster a job is with more workers, and why not more."""

from __future__ import annotations

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
from raydist.runs.scaling import Measurement, verdict
from raydist.runs.scaling_picture import picture
from raydist.spec.job import Strategy
from raydist.spec.params import ParamTexts

if TYPE_CHECKING:
    from raydist.planning.plan import Plan

_ONE_DEVICE = "one device"
_HEADERS = (
    *("run", "examples/s", "speed-up", "efficiency", "all-reduce", "input", "memory MB"),
    "worker-s/1M examples",
)


@click.command("scale", cls=RunCommand, epilog="More: `raydist guide scaling`.")
@click.argument("job", metavar="JOB")
@module_option
@click.option(
    "--workers",
    "workers_text",
    metavar="N[,N]",
    required=True,
    help="Numbers of workers to run the job with, such as 1,2,4.",
)
@steps_option
@click.option("--csv", "csv_path", metavar="FILE", type=click.Path(path_type=Path), help="Also write a CSV.")
@click.option(
    "--plot", "plot_path", metavar="FILE", type=click.Path(path_type=Path), help="Also draw it, as SVG."
)
@job_options(without=SET_HERE)
@json_option
def command(
    job: str,
    is_module: bool,
    workers_text: str,
    steps: int,
    csv_path: Path | None,
    plot_path: Path | None,
    config: Path | None,
    param_texts: tuple[str, ...],
    is_json: bool,
    **options: object,
) -> int:
    """Measure a job with several numbers of workers.

    Runs the job on one device without distribution, then with each number of workers, and stops each run
    after some steps. Prints speed, shares of all-reduce and input, memory and cost, and what bounds the job.

    \b
    Example:
      raydist scale jobs/digits.py --workers 1,2,4 -p epochs=1000 --plot scale.svg
    """
    runs = JobRuns(
        job=target_of(job, is_module=is_module),
        config=config,
        params=ParamTexts.parse(param_texts),
        options=given_options(options),
    )
    cases = _cases(runs, numbers_of_workers(workers_text))
    found: list[Measurement] = []

    def measure(name: str, own: dict[str, Any], plan: Plan) -> None:
        one, _ = runs.measure(name, plan, study=cases[0][2].job.name, num_steps=steps, **own)
        found.append(one)

    def show(*, as_json: bool) -> None:
        _show(found, job=job, csv_path=csv_path, plot_path=plot_path, is_json=as_json)

    return run_each(cases, measure, show=show, is_json=is_json)


def numbers_of_workers(text: str) -> list[int]:
    """Returns the numbers that `1,2,4` has, in ascending order; raises MistakeError for other texts."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise MistakeError(f"--workers is {text!r}; write numbers from 1 on, as in 1,2,4")
    return found


def _cases(runs: JobRuns, numbers: Sequence[int]) -> list[tuple[str, dict[str, Any], Plan]]:
    """Returns name, options and plan of each run, the one on one device first. All are planned at first."""
    alone: dict[str, Any] = {"strategy": Strategy.ONE_DEVICE.value, "workers": 1, "ps": 0}
    cases = [(_ONE_DEVICE, alone, runs.plan(**alone))]
    for number in numbers:
        own = {"workers": number}
        plan = runs.plan(**own)
        if plan.strategy is not Strategy.ONE_DEVICE:  # which is the one above
            cases.append((f"{number} worker{'' if number == 1 else 's'}", own, plan))
    return cases


def _show(
    found: Sequence[Measurement], *, job: str, csv_path: Path | None, plot_path: Path | None, is_json: bool
) -> None:
    one_device = found[0]
    told = verdict(one_device, found)
    rows = [one.as_dict(one_device) for one in found]
    if csv_path is not None:
        write_file(csv_path, csv_text(rows), option="--csv")
    if plot_path is not None:
        write_file(plot_path, picture(Path(job).name, one_device, found), option="--plot")
    if is_json:
        output.print_json({"job": job, "runs": rows, "bound": told.bound.value, "answer": told.sentence})
        return
    output.print_table(_HEADERS, [_cells(one, one_device) for one in found])
    output.show(told.sentence)


def _cells(one: Measurement, one_device: Measurement) -> list[object]:
    return [
        one.name,
        _rounded(one.examples_per_s),
        _rounded(one.speed_up(one_device), digits=2),
        _share(one.efficiency(one_device)),
        _share(one.collective_wait),
        _share(one.input_wait),
        _rounded(None if one.memory_bytes is None else one.memory_bytes / 1e6),
        None if one.worker_s_per_million is None else float(f"{one.worker_s_per_million:.3g}"),
    ]


def _rounded(value: float | None, *, digits: int | None = None) -> float | None:
    return None if value is None else round(value, digits)


def _share(value: float | None) -> str | None:
    return None if value is None else f"{value:.0%}"
