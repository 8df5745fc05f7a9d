"""FaultyProxy: an HTTP proxy in front of a real object store that fails as stores and networks do."""

from __future__ import annotations

import contextlib
import enum
import http.client
import socket
import threading
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_ERROR_BODY = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>{}</Message></Error>'
# They belong to one connection, not to what passes through it.
_HOP_HEADERS = ("connection", "keep-alive", "transfer-encoding", "content-length", "expect", "date", "server")
_HANG_S = 60.0


class Fault(enum.Enum):
    """What happens to a request instead of its answer."""

    INTERNAL_ERROR = "500, and the store has not seen it"
    SLOW_DOWN = "503, and the store has not seen it"
    FORBIDDEN = "403: the user may not"
    DROPPED = "the connection is closed, and the store has not seen it"
    CUT_UPLOAD = "the connection is closed in the middle of the request's body"
    LOST_ANSWER = "the store has done it, and the connection is closed without an answer"
    CUT_ANSWER = "the connection is closed in the middle of the answer's body"
    HANGING = "no answer comes"


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """What a fault is chosen by. `number` counts all requests from 0; `path` has no query."""

    number: int
    method: str
    path: str


Choice = Callable[[HttpRequest], Fault | None]


class FaultyProxy:
    """Passes requests on, except where `choose` names a fault, which a test may set at any time.

    Attributes:
      endpoint: What to use in place of the store's own.
      faults: How often each fault has happened.
    """

    def __init__(self, upstream: str, server: ThreadingHTTPServer) -> None:
        self.choose: Choice = lambda request: None
        self.faults: Counter[Fault] = Counter()
        self.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        self.upstream = urllib.parse.urlsplit(upstream).netloc
        self.is_closed = threading.Event()
        self._num_requests = 0
        self._lock = threading.Lock()

    @property
    def num_requests(self) -> int:
        return self._num_requests

    def fault_for(self, method: str, path: str) -> Fault | None:
        with self._lock:
            fault = self.choose(HttpRequest(number=self._num_requests, method=method, path=path))
            self._num_requests += 1
            if fault is not None:
                self.faults[fault] += 1
            return fault


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """Serves on a port of its own until the end of the block."""
    server = _Server(("127.0.0.1", 0), _Handler)
    proxy = server.proxy = FaultyProxy(upstream, server)
    thread = threading.Thread(target=server.serve_forever, name="faulty-proxy", daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.is_closed.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    proxy: FaultyProxy

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None: ...

    def _handle(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        fault = self.server.proxy.fault_for(self.command, path)
        if fault is Fault.CUT_UPLOAD:
            self.rfile.read(self._body_length() // 2)
            return self._hang_up()
        body = self._read_chunks() if self._is_chunked() else self.rfile.read(self._body_length())
        match fault:
            case Fault.INTERNAL_ERROR:
                return self._answer(500, {}, _ERROR_BODY.format("InternalError", "try again").encode())
            case Fault.SLOW_DOWN:
                return self._answer(503, {}, _ERROR_BODY.format("SlowDown", "reduce your rate").encode())
            case Fault.FORBIDDEN:
                return self._answer(403, {}, _ERROR_BODY.format("AccessDenied", "not yours").encode())
            case Fault.DROPPED:
                return self._hang_up()
            case Fault.HANGING:
                self.server.proxy.is_closed.wait(_HANG_S)
                return self._hang_up()
        status, headers, content = self._ask_upstream(body)
        if fault is Fault.LOST_ANSWER:
            return self._hang_up()
        self._answer(status, headers, content, cut=fault is Fault.CUT_ANSWER)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _is_chunked(self) -> bool:
        return self.headers.get("Transfer-Encoding", "").lower() == "chunked"

    def _body_length(self) -> int:
        # AWS's SDK sends objects in chunks, and says besides them how long the object is.
        length = self.headers.get("Content-Length") or self.headers.get("x-amz-decoded-content-length")
        return int(length or 0)

    def _read_chunks(self) -> bytes:
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _ask_upstream(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.proxy.upstream, timeout=_HANG_S)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS}
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        kept = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_HEADERS}
        if self.command == "HEAD":
            kept["Content-Length"] = answer.getheader("Content-Length") or "0"
        return answer.status, kept, content

    def _answer(self, status: int, headers: dict[str, str], content: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        elif "Content-Length" not in headers:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
