"""Commands that show runs in a browser: `raydist ui` and `raydist tensorboard`."""

from __future__ import annotations

import ipaddress
import signal
import sys
import threading

import click

from raydist import __version__
from raydist.cli.job_options import count_option, reading_options
from raydist.cli.run_argument import complete_run, open_named
from raydist.cli.running import interrupts
from raydist.cli.screen import output
from raydist.page.server import new_token


def warn_of_readers(host: str) -> None:
    """Says on stderr who can read what `host` serves without a token, if others than this machine can."""
    if not _is_loopback(host):
        output.show(f"raydist: everybody who reaches {host} can read these runs", is_error=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@click.command("ui", epilog="More: `raydist guide page`.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@count_option(
    "--port",
    "The port; 7788 when omitted, or a free one if that is taken.",
    minimum=0,
    maximum=65535,
)
@click.option("--no-token", is_flag=True, help="Allow anyone who can reach the port.")
@reading_options
def ui(host: str, port: int | None, no_token: bool, storage: str, is_json: bool) -> None:
    """Serve a live web page of all runs.

    It shows the list of runs, compares up to 10 of them, and has a page for each run. It only reads, and runs
    until Ctrl-C.
    """
    from raydist.page.server import open_server
    from raydist.page.site import Site
    from raydist.storage.filesystem import Storage

    opened = Storage.open(storage)
    site, token = Site(opened, version=__version__), None if no_token else new_token()
    with open_server(site, host=host, port=port, token=token) as server:
        if is_json:
            output.print_json({"url": server.url, "storage": opened.uri()})
        else:
            output.show(f"{server.url}  shows the runs in {opened.uri()}; Ctrl-C ends it")
        if no_token:
            warn_of_readers(host)
        sys.stdout.flush()
        with interrupts():
            server.serve_forever(poll_interval=0.2)


@click.command("tensorboard", epilog="More: `raydist guide page`.")
@click.argument("runs", metavar="[RUN…]", nargs=-1, shell_complete=complete_run)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@count_option(
    "--port",
    "The port; 6006 when omitted, or a free one if that is taken.",
    minimum=1,
    maximum=65535,
)
@reading_options
def tensorboard(runs: tuple[str, ...], host: str, port: int | None, storage: str, is_json: bool) -> None:
    """Start TensorBoard for one or more runs.

    It shows the given runs, or all of the storage, follows live runs, and runs until Ctrl-C. It needs
    TensorBoard: `pip install 'raydist[tensorboard]'`.

    \b
    Example:
      raydist tensorboard @latest
    """
    from raydist.board import running_tensorboard
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
        sys.stdout.flush()
        stop.wait()
    raise KeyboardInterrupt  # told once nothing is left, as by every command that Ctrl-C ends


def _stopped_by_signals() -> threading.Event:
    """Returns what SIGINT and SIGTERM set, also where a shell without job control had SIGINT ignored."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    return stop
