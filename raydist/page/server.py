"""The HTTP server of `raydist ui`."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import logging
import secrets
import socket
from collections.abc import Collection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from raydist.errors import MistakeError
from raydist.page.html import LIVE_POLICY
from raydist.page.site import Response, Site

DEFAULT_PORT = 7788

logger = logging.getLogger(__name__)

_HEADERS = {
    "Content-Security-Policy": f"{LIVE_POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
# A client that connects and says nothing does not keep its thread longer.
_CLIENT_TIMEOUT_S = 30.0


def new_token() -> str:
    """Returns a token that cannot be guessed: 128 bits."""
    return secrets.token_urlsafe(16)


def without_token(path: str, *, token: str | None) -> str | None:
    """Returns what follows `/TOKEN/` in a path; None where the token is another one.

    Args:
      token: None where none is asked for.
    """
    if token is None:
        return path.removeprefix("/")
    given, slash, rest = path.removeprefix("/").partition("/")
    # Takes the same time however much of it is right.
    is_right = hmac.compare_digest(given.encode(), token.encode())
    return rest if is_right and slash else None


def is_own_host(header: str | None, *, names: Collection[str]) -> bool:
    """Whether a Host header names this server.

    A site that lets its own name point at 127.0.0.1 (DNS rebinding) has the browser send that name. An
    address in numbers needs no name server, so any is allowed.

    Args:
      names: The names that are this server's, in lower case.
    """
    if not header:
        return False
    bare = header.rsplit(":", 1)[0] if not header.endswith("]") and ":" in header else header
    host = bare.removeprefix("[").removesuffix("]").lower()
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host in names
    return True


def own_names(host: str) -> frozenset[str]:
    """Returns the names of a server that listens on `host`."""
    return frozenset({"localhost", host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()})


class PageServer(ThreadingHTTPServer):
    """Serves a site to whoever has the token, until it is closed.

    Attributes:
      url: What to open, the token included.
    """

    daemon_threads = True

    def __init__(self, site: Site, *, host: str, port: int, token: str | None) -> None:
        """Listens; raises OSError where it cannot."""
        self.site = site
        self.token = token
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)
        shown = f"[{host}]" if ":" in host else host
        self.names = own_names(host)
        self.url = f"http://{shown}:{self.server_address[1]}/{f'{token}/' if token else ''}"

    def server_bind(self) -> None:
        # HTTPServer would ask a name server for its own name here.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()


def open_server(site: Site, *, host: str, port: int | None, token: str | None) -> PageServer:
    """Returns a server that listens.

    Args:
      port: None takes DEFAULT_PORT, or any other where that is taken.

    Raises:
      MistakeError: The port is taken, or the host is none of this machine.
    """
    if port is None:
        with contextlib.suppress(OSError):
            return PageServer(site, host=host, port=DEFAULT_PORT, token=token)
        port = 0
    try:
        return PageServer(site, host=host, port=port, token=token)
    except OSError as error:
        raise MistakeError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}; give another --port or --host"
        ) from error


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "raydist"
    sys_version = ""
    timeout = _CLIENT_TIMEOUT_S

    def do_GET(self) -> None:
        answer = self._answer()
        self.send_response(answer.status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the page was closed
            self.wfile.write(answer.content)

    def _answer(self) -> Response:
        if not is_own_host(self.headers.get("Host"), names=self.server.names):
            return _refusal("This server does not answer to that name.")
        parts = urlsplit(self.path)
        path = without_token(parts.path, token=self.server.token)
        if path is None:
            return _refusal("Open the address that `raydist ui` printed, with its token.")
        return self.server.site.answer(path, parts.query)

    def log_message(self, format: str, *args: object) -> None:
        logger.debug(format, *args)


def _refusal(sentence: str) -> Response:
    return Response(403, "text/plain; charset=utf-8", f"{sentence}\n".encode())
