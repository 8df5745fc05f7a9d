"""`raydist ui`: the runs of a storage in a browser, while they go on."""

from __future__ import annotations

import signal
import sys
import threading

import click

from raydist import __version__
from raydist.cli.job_options import count_option, json_option, storage_option
from raydist.cli.screen import output
from raydist.cli.screen.listening import warn_of_readers
from raydist.page.access import new_token


@click.command("ui", epilog="More: `raydist guide page`.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@count_option(
    "--port",
    "The port; 7788 when omitted, or a free one if that is taken.",
    minimum=0,
    maximum=65535,
)
@click.option("--no-token", is_flag=True, help="Allow anyone who can reach the port.")
@storage_option
@json_option
def command(host: str, port: int | None, no_token: bool, storage: str, is_json: bool) -> None:
    """Serve a live web page of all runs.

    It shows the list of runs, compares up to 10 of them, and shows each run as `raydist report` does. It only
    reads, and runs until Ctrl-C.
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
        _take_interrupts()
        server.serve_forever(poll_interval=0.2)


def _take_interrupts() -> None:
    """Lets SIGINT and SIGTERM end the server, also where a shell without job control had SIGINT ignored."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
