"""`raydist stop RUN`: ends a live run in a Ray cluster, or in another process of this host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from raydist.cli.job_options import json_option, storage_option, timeout_option
from raydist.cli.run_argument import open_named, run_argument
from raydist.cli.screen import output, run_view
from raydist.errors import ClusterError
from raydist.spec.settings.options import find_option

if TYPE_CHECKING:
    from raydist.runs.attached import AttachedRun

_ADDRESS = find_option("address")
# A controller that was brought back since does not know that its run is to stop.
_ASK_AGAIN_S = 10.0


@click.command("stop", epilog="More: `raydist guide on-a-cluster`.")
@run_argument
@timeout_option("60s")
@click.option(
    "--address",
    metavar=_ADDRESS.metavar,
    help="Ray that a detached run is in; the one it was submitted to when omitted.",
)
@storage_option
@json_option
def command(run: str, timeout_s: float, address: str | None, storage: str, is_json: bool) -> None:
    """Stop a run and wait for its end.

    It ends as with Ctrl-C in its own shell. A detached run is stopped from any host that reaches its Ray; any
    other run on the host of the process that submitted it.
    """
    from raydist.runs.attached import AttachedRun

    opened = open_named(storage, run)
    run = opened.run
    attached = AttachedRun(opened, address=address)
    with output.stdout_kept_for_json(is_json):
        _stop(attached, run, timeout_s=timeout_s)
    result = attached.status()
    if is_json:
        told = result.as_dict()
        output.print_json({key: told[key] for key in ("run", "state", "steps", "checkpoint", "storage")})
    else:
        output.show(f"run {run}: {run_view.how_far(result.state, result.steps)}")


def _stop(attached: AttachedRun, run: str, *, timeout_s: float) -> None:
    attached.request_stop()
    deadline_s = time.monotonic() + timeout_s
    while not attached.wait(min(_ASK_AGAIN_S, max(0.0, deadline_s - time.monotonic()))):
        if time.monotonic() >= deadline_s:
            raise ClusterError(f"run {run} did not end within {timeout_s:g} s; {attached.where()}")
        if attached.is_detached:  # another Ctrl-C would make a process stop at once
            attached.request_stop()
