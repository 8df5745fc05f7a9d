"""`raydist tensorboard [RUN...]`: TensorBoard over runs of a storage, while they go on."""

from __future__ import annotations

import signal
import sys
import threading

import click

from raydist.cli.job_options import count_option, json_option, storage_option
from raydist.cli.run_argument import complete_run, open_named
from raydist.cli.screen import output
from raydist.cli.screen.listening import warn_of_readers


@click.command("tensorboard", epilog="More: `raydist guide tensorboard`.")
@click.argument("runs", metavar="[RUN…]", nargs=-1, shell_complete=complete_run)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@count_option(
    "--port",
    "The port; 6006 when omitted, or a free one if that is taken.",
    minimum=1,
    maximum=65535,
)
@storage_option
@json_option
def command(runs: tuple[str, ...], host: str, port: int | None, storage: str, is_json: bool) -> None:
    """Start TensorBoard for one or more runs.

    It shows the given runs, or all of the storage, follows live runs, and runs until Ctrl-C. It needs
    TensorBoard: `pip install 'raydist[tensorboard]'`.

    \b
    Example:
      raydist tensorboard @latest
    """
    from raydist.board.server import running_tensorboard
    from raydist.storage.filesystem import Storage

    opened = Storage.open(storage)
    names = [open_named(storage, run).run for run in runs] or None
    stop = _stopped_by_signals()
    with running_tensorboard(opened, runs=names, host=host, port=port) as url:
        if is_json:
            output.print_json({"url": url, "storage": opened.uri(), "runs": names})
        else:
            shown = "the runs" if names is None else ", ".join(names)
            output.show(f"{url}  shows {shown} in {opened.uri()}; Ctrl-C ends it")
        warn_of_readers(host)
        sys.stdout.flush()
        stop.wait()
    raise KeyboardInterrupt  # told once nothing is left, as by every command that Ctrl-C ends


def _stopped_by_signals() -> threading.Event:
    """Returns what SIGINT and SIGTERM set, also where a shell without job control had SIGINT ignored."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
