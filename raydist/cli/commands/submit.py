"""`raydist submit JOB`: runs a job."""

from __future__ import annotations

from pathlib import Path

import click

from raydist.cli import running
from raydist.cli.job_options import given_options, job_options, json_option


@click.command("submit")
@click.argument("job", metavar="JOB")
@job_options()
@json_option
def command(
    job: str, config: Path | None, param_texts: tuple[str, ...], is_json: bool, **options: object
) -> int:
    """Train JOB, and wait for its end, or with --detach until the cluster has accepted it.

    JOB is path/to/file.py[:function] or package.module:function.
    """
    return running.run_job(
        job, config=config, param_texts=param_texts, options=given_options(options), is_json=is_json
    )
