"""Who may ask the server of `raydist ui`: whoever has the token, by a name that no other site can take."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection


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
