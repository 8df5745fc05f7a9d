"""A store that speaks as much of S3 as reading takes, after a delay: moto is too slow to measure by.

As a program, `static_store.py FOLDER` serves the folder, whose folders are the buckets, and prints its port.
It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from xml.sax.saxutils import escape

_PAGE = 1000
_STATUS = {200: "OK", 206: "Partial Content", 404: "Not Found"}


class StaticStore:
    """A running store. Attributes: `endpoint`, to be given to S3 clients."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def set_delay(self, delay_s: float) -> None:
        """Has each answer begin so much later."""
        self._ask(f"delay?{delay_s}")

    def look_again(self) -> None:
        """Has files be listed that were written since the store began."""
        self._ask("look")

    def take_counts(self) -> Counter[str]:
        """Returns how many requests of each kind (LIST, HEAD, GET) came since the last call."""
        return Counter(json.loads(self._ask("counts")))

    def _ask(self, what: str) -> bytes:
        with urllib.request.urlopen(f"{self.endpoint}/-/{what}") as answer:
            content: bytes = answer.read()
            return content


@contextlib.contextmanager
def static_store(folder: Path, *, delay_s: float = 0.0) -> Iterator[StaticStore]:
    """Serves a folder until the end of the block."""
    with subprocess.Popen(
        [sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        store = StaticStore(f"http://127.0.0.1:{int(process.stdout.readline())}")
        store.set_delay(delay_s)
        yield store
        process.stdin.close()


class _Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.delay_s = 0.0
        self.counts: Counter[str] = Counter()
        self._keys: dict[str, list[str]] = {}
        self._look()

    def _look(self) -> None:
        for bucket in self.folder.iterdir():
            files = ((place, name) for place, _, names in os.walk(bucket) for name in names)
            first = len(str(bucket)) + 1
            self._keys[bucket.name] = sorted(f"{place}/{name}"[first:] for place, name in files)

    def answer(self, method: str, path: str, query: str, byte_range: str | None) -> tuple[int, str, bytes]:
        """Returns the status, more headers, and the body."""
        if path.startswith("/-/"):
            return 200, "", self._told(path[3:], query)
        bucket, _, key = path[1:].partition("/")
        if not key:
            self.counts["LIST"] += 1
            return (
                200,
                "Content-Type: application/xml\r\n",
                self._listed(bucket, urllib.parse.parse_qs(query)),
            )
        self.counts[method] += 1
        try:
            status = os.stat(self.folder / bucket / key)
            with open(self.folder / bucket / key, "rb") as file:
                first, end = 0, status.st_size
                if byte_range is not None:
                    begin, _, last = byte_range.removeprefix("bytes=").partition("-")
                    first, end = int(begin), min(end, int(last) + 1)
                content = b"" if method == "HEAD" else os.pread(file.fileno(), end - first, first)
        except OSError:
            return 404, "", b""
        headers = (
            f'Last-Modified: {formatdate(status.st_mtime, usegmt=True)}\r\nETag: "{status.st_mtime_ns}"\r\n'
        )
        if method == "HEAD":
            return 200, f"{headers}Content-Length: {status.st_size}\r\n", b""
        if byte_range is None:
            return 200, headers, content
        return 206, f"{headers}Content-Range: bytes {first}-{end - 1}/{status.st_size}\r\n", content

    def _told(self, what: str, query: str) -> bytes:
        if what == "delay":
            self.delay_s = float(query)
            return b""
        if what == "look":
            self._look()
            return b""
        counts, self.counts = self.counts, Counter()
        return json.dumps(counts).encode()

    def _listed(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", [""])[0]
        size = int(query.get("max-keys", [str(_PAGE)])[0])
        keys = self._keys.get(bucket, [])
        begin = bisect_right(keys, after)
        page: list[str] = []
        more = False
        for key in keys[begin:]:
            if key.startswith(prefix):
                if len(page) == size:
                    more = True
                    break
                page.append(key)
        entries = "".join(self._entry(bucket, key) for key in page)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        return (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult '
            f'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix>'
            f"<KeyCount>{len(page)}</KeyCount><MaxKeys>{size}</MaxKeys><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token}{entries}</ListBucketResult>"
        ).encode()

    def _entry(self, bucket: str, key: str) -> str:
        status = os.stat(self.folder / bucket / key)
        modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(status.st_mtime))  # S3 has no more
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
            f"<Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )


class _Connection(asyncio.Protocol):
    def __init__(self, store: _Store) -> None:
        self._store = store
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            first, *lines = head.decode().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {
                name.lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)
            }
            delay_s = 0.0 if target.startswith("/-/") else self._store.delay_s
            loop = asyncio.get_running_loop()
            loop.call_later(delay_s, self._answer, method, target, headers.get("range"))

    def _answer(self, method: str, target: str, byte_range: str | None) -> None:
        parts = urllib.parse.urlsplit(target)
        status, headers, body = self._store.answer(
            method, urllib.parse.unquote(parts.path), parts.query, byte_range
        )
        if "Content-Length" not in headers:
            headers += f"Content-Length: {len(body)}\r\n"
        self._transport.write(f"HTTP/1.1 {status} {_STATUS[status]}\r\n{headers}\r\n".encode() + body)


async def _serve(folder: Path) -> None:
    loop = asyncio.get_running_loop()
    store = _Store(folder)
    server = await loop.create_server(lambda: _Connection(store), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    is_over = asyncio.Event()

    def wait() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(is_over.set)

    threading.Thread(target=wait, daemon=True).start()
    await is_over.wait()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
