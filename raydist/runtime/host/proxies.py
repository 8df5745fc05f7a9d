"""Variables that lead connections through a proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_NAMES = ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy")


def proxies_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of those that are set."""
    return tuple(name for name in (*_NAMES, *map(str.upper, _NAMES)) if environ.get(name))


def describe_proxies(names: Sequence[str]) -> str:
    return f"{', '.join(names)} set; tasks do not use them for each other" if names else "none"
