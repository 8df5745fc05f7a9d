"""`raydist submit JOB`: runs a job."""

from __future__ import annotations

from pathlib import Path

import click

from raydist.cli import running
from raydist.cli.commands import plan
from raydist.cli.job_options import (
    RunCommand,
    given_options,
    job_options,
    json_option,
    module_option,
    target_of,
)
from raydist.spec.params import ParamTexts


@click.command(
    "submit", cls=RunCommand, epilog="More: `raydist guide commands`, `raydist guide writing-a-job`."
)
@click.argument("job", metavar="JOB")
@module_option
@job_options()
@click.option("--dry-run", is_flag=True, help="Show what would be launched, as `raydist plan` does.")
@json_option
def command(
    job: str,
    is_module: bool,
    dry_run: bool,
    config: Path | None,
    param_texts: tuple[str, ...],
    is_json: bool,
    **options: object,
) -> int:
    """Train JOB and wait until it ends.

    JOB is path/to/file.py[:function] or package.module[:function]. Without a job in it, it is a script: each
    task runs it unchanged, with TF_CONFIG set and the arguments that follow `--`. With --detach, return once
    the cluster has accepted the run.

    \b
    Example:
      raydist submit jobs/cifar.py --workers 4 -p epochs=20 --timeout 2h
      raydist submit main.py --workers 2 -- --batch-size 64
    """
    target = target_of(job, is_module=is_module)
    params, given = ParamTexts.parse(param_texts), given_options(options)
    if dry_run:
        from raydist import api

        plan.show(api.plan(target, config=config, params=params, **given), is_json=is_json)
        return 0
    return running.run_job(target, config=config, params=params, options=given, is_json=is_json)
