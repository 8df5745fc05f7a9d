"""What commands that serve pages say of who can read them."""

from __future__ import annotations

import ipaddress

from raydist.cli.screen import output


def warn_of_readers(host: str) -> None:
    """Says on stderr who can read what `host` serves without a token, if others than this machine can."""
    if not _is_loopback(host):
        output.show(f"raydist: everybody who reaches {host} can read these runs", is_error=True)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
