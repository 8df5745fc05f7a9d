"""Agrees with a Ray on authentication: the token that a driver sends, or that an embedded Ray gets."""

from __future__ import annotations

import secrets
from collections.abc import MutableMapping
from typing import Any

from raydist.errors import ClusterError
from raydist.runtime.host.address import CLIENT_PREFIX

ASK_TIMEOUT_S = 5.0

AUTH_MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"
TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
_TOKEN_REMEDY = (
    f"give it in {TOKEN}, in a file named by {TOKEN_PATH}, or in ~/.ray/auth_token "
    "(on the head: ray get-auth-token)"
)


def ensure_token(environ: MutableMapping[str, str]) -> None:
    """Gives an embedded Ray a token of its own where the user has none, for Ray's processes to inherit.

    Otherwise Ray 2.60 writes one into ~/.ray/auth_token, with mode 0644. It stays there, and every later
    `ray start` demands it.
    """
    from raydist.runtime.cluster import ray_internals

    if environ.get(AUTH_MODE, "").lower() == "disabled" or environ.get(TOKEN_PATH):
        return
    ray_internals.reload_authentication()
    if not ray_internals.has_token():
        environ[TOKEN] = secrets.token_hex(32)
        ray_internals.reload_authentication()


def agree_on_authentication(target: str, environ: MutableMapping[str, str]) -> None:
    """Sends a token exactly where the cluster wants one, so that RAY_AUTH_MODE need not be set.

    A driver is called back by the cluster and refuses calls without its token, so in token mode on
    a cluster without authentication every actor would die as if its driver were gone.
    """
    from raydist.runtime.cluster.ray_internals import Listener, has_token

    wanted = environ.get(AUTH_MODE, "").lower()
    _set_auth_mode(environ, "disabled")
    answer = _ask(target)
    if answer is Listener.RAY and wanted == "token":
        raise ClusterError(
            f"{AUTH_MODE} is token, but the Ray at {target} runs without authentication; unset it"
        )
    if answer is Listener.UNAUTHENTICATED and wanted != "disabled" and has_token():
        _set_auth_mode(environ, "token")
        answer = _ask(target)
    if answer is Listener.UNAUTHENTICATED:
        which = "another token than the one found here" if has_token() else "a token, and there is none here"
        raise ClusterError(f"Ray at {target} wants {which}; {_TOKEN_REMEDY}")
    if answer is Listener.OTHER:
        raise ClusterError(
            f"what answers at {target} is not Ray; give the address that `ray start` printed, "
            "or ray://HOST:10001 for Ray's client server"
        )


def _ask(target: str) -> Any:
    from raydist.runtime.cluster import ray_internals

    is_client = target.startswith(CLIENT_PREFIX)
    ask = ray_internals.ask_client_server if is_client else ray_internals.ask_gcs
    return ask(target.removeprefix(CLIENT_PREFIX), timeout_s=ASK_TIMEOUT_S)


def _set_auth_mode(environ: MutableMapping[str, str], mode: str) -> None:
    from raydist.runtime.cluster import ray_internals

    environ[AUTH_MODE] = mode
    ray_internals.reload_authentication()
