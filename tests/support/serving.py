"""The server of `raydist ui` in this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from raydist.page.server import PageServer, open_server
from raydist.page.site import Site
from raydist.storage.filesystem import Storage


@contextlib.contextmanager
def serving(uri: str) -> Iterator[PageServer]:
    """Serves a storage on a free port, with the token `secret`, until the end of the block."""
    site = Site(Storage.open(uri), version="1.2.3")
    with open_server(site, host="127.0.0.1", port=0, token="secret") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
