"""`raydist stop RUN`: ends a run that goes on in another process of this host."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import click

from raydist.cli import output, run_view
from raydist.cli.job_options import json_option, storage_option
from raydist.errors import ClusterError, MistakeError
from raydist.spec.process import is_alive, is_this_host

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raydist.storage.filesystem import Storage

_POLL_S = 0.2


@click.command("stop")
@click.argument("run", metavar="RUN")
@click.option(
    "--timeout", "timeout_s", metavar="SECONDS", default=60.0, show_default=True, help="How long to wait."
)
@storage_option
@json_option
def command(run: str, timeout_s: float, storage: str, is_json: bool) -> None:
    """Stop a run, as Ctrl-C in its own shell does, and wait for its end.

    The process that submitted it has to run on this host.
    """
    from raydist.storage.filesystem import Storage
    from raydist.storage.run_record import read_record

    run_view.check_name(run)
    opened = Storage.open(storage)
    record = read_record(opened, run)
    if record["state"] not in run_view.ENDED:
        driver = _driver_of(record)
        os.kill(driver["pid"], signal.SIGINT)
        record = _wait_for_end(opened, run, driver, timeout_s=timeout_s)
    if is_json:
        output.print_json({key: record[key] for key in ("run", "state", "steps", "checkpoint", "storage")})
    else:
        click.echo(f"run {run}: {record['state']} after {record['steps']} steps")


def _driver_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the living process of this host that drives the run."""
    run, driver = record["run"], record.get("driver")
    if driver is None:
        raise MistakeError(f"run {run} does not say which process drives it; stop that one")
    if not is_this_host(driver):
        raise MistakeError(
            f"run {run} is driven by process {driver['pid']} on host {driver['host']}; "
            f"run `raydist stop {run}` there"
        )
    if not is_alive(driver):
        raise MistakeError(
            f"run {run} does not run: process {driver['pid']}, which drove it, has died, and its tasks "
            f"with it; go on from it with `raydist resume {run}`"
        )
    return dict(driver)


def _wait_for_end(
    storage: Storage, run: str, driver: Mapping[str, Any], *, timeout_s: float
) -> dict[str, Any]:
    from raydist.storage.run_record import read_record

    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        is_gone = not is_alive(driver)
        record = read_record(storage, run)
        if record["state"] in run_view.ENDED or is_gone:
            return record
        time.sleep(_POLL_S)
    raise ClusterError(
        f"run {run} did not end within {timeout_s:g} s; process {driver['pid']} of this host drives it"
    )
