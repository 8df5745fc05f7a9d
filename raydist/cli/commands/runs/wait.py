"""`raydist wait RUN`: returns once a run has ended, with its exit code."""

from __future__ import annotations

import math

import click

from raydist.cli.job_options import json_option, storage_option, timeout_option
from raydist.cli.run_argument import open_named, run_argument, wait_option
from raydist.cli.screen import output, run_view
from raydist.errors import ClusterError


@click.command("wait", epilog="More: `raydist guide commands`.")
@run_argument
@timeout_option()
@click.option(
    "--address",
    metavar="ADDRESS",
    help="Ray that a detached run is in; the one it was submitted to when omitted.",
)
@wait_option
@storage_option
@json_option
def command(
    run: str, timeout_s: float | None, address: str | None, wait_s: float, storage: str, is_json: bool
) -> int:
    """Wait until a run ends, and exit with its exit code.

    Works from any shell. A run whose driver has died is exit code 3.
    """
    from raydist.runs.attached import AttachedRun

    opened = open_named(storage, run, wait_s=min(wait_s, math.inf if timeout_s is None else timeout_s))
    attached = AttachedRun(opened, address=address)
    with output.stdout_kept_for_json(is_json):
        has_ended = attached.wait(timeout_s)
    result = attached.status()
    if not has_ended:
        raise ClusterError(f"run {opened.run} did not end within {timeout_s:g} s; {attached.where()}")
    if is_json:
        output.print_json(result.as_dict())
    else:
        output.show(f"run {opened.run}: {run_view.how_far(result.state, result.steps)}")
        if result.error is not None:
            run_view.print_error(result.error)
    return result.exit_code
