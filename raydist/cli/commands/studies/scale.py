"""`raydist compare JOB --workers 1,2,4`: how much faster a job is with more workers, and why not more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydist.cli.commands.studies.comparison import Comparison, Study, run_each
from raydist.cli.commands.studies.short_runs import Case, ShortRun, case_of
from raydist.cli.job_options import AskedJob
from raydist.errors import MistakeError
from raydist.runs.pictures import scaling_picture
from raydist.runs.scaling import Measurement, verdict
from raydist.spec.job import Strategy
from raydist.spec.text import counted

_ONE_DEVICE = "one device"
_HEADERS = (
    *("run", "examples/s", "speed-up", "efficiency", "all-reduce", "input", "memory MB"),
    "worker-s/1M examples",
)


def compare_workers(study: Study, workers_text: str) -> int:
    """Runs the job on one device without distribution, then with each number of workers."""
    return run_each(study, _cases(study.asked, numbers_of_workers(workers_text)), _comparison)


def numbers_of_workers(text: str) -> list[int]:
    """Returns the numbers that `1,2,4` has, in ascending order; raises MistakeError for other texts."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise MistakeError(f"--workers is {text!r}; write numbers from 1 on, as in 1,2,4")
    return found


def _cases(asked: AskedJob, numbers: Sequence[int]) -> list[Case]:
    """Returns the runs, the one on one device first."""
    cases = [case_of(asked, _ONE_DEVICE, strategy=Strategy.ONE_DEVICE.value, workers=1, ps=0)]
    for number in numbers:
        case = case_of(asked, counted(number, "worker"), workers=number)
        if case.plan.strategy is not Strategy.ONE_DEVICE:  # which is the one above
            cases.append(case)
    return cases


def _comparison(job: str, runs: Sequence[ShortRun]) -> Comparison:
    found = [one.measurement for one in runs]
    one_device = found[0]
    told = verdict(one_device, found)
    rows = [one.as_dict(one_device) for one in found]
    return Comparison(
        answer={"job": job, "runs": rows, "bound": told.bound.value, "answer": told.sentence},
        headers=_HEADERS,
        cells=[_cells(one, one_device) for one in found],
        sentence=told.sentence,
        picture=scaling_picture(Path(job).name, one_device, found),
    )


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
