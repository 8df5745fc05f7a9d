"""`raydist submit JOB`: runs a job."""

from __future__ import annotations

from pathlib import Path

import click

from raydist.cli import running
from raydist.cli.job_options import given_options, job_options, json_option
from raydist.cli.screen.grouped_help import RunCommand


@click.command(
    "submit", cls=RunCommand, epilog="More: `raydist guide commands`, `raydist guide writing-a-job`."
)
@click.argument("job", metavar="JOB")
@job_options()
@json_option
def command(
    job: str, config: Path | None, param_texts: tuple[str, ...], is_json: bool, **options: object
) -> int:
    """Train JOB and wait for its end.

    JOB is path/to/file.py[:function] or package.module:function. With --detach, return once the cluster has
    accepted the run.

    \b
    Example:
      raydist submit jobs/cifar.py --workers 4 -p epochs=20 --timeout 2h
    """
    return running.run_job(
        job, config=config, param_texts=param_texts, options=given_options(options), is_json=is_json
    )
