"""What tasks leave for each other past the run's storage, with the chief's agent."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from raydist.errors import ClusterError

# Many tasks may wait for one parcel, for minutes.
_FIRST_POLL_S, _MAX_POLL_S = 0.05, 1.0
_SMALL_BYTES = 100_000


class KeptParcels:
    """The parcels of one attempt, in the agent that keeps them."""

    def __init__(self) -> None:
        self._parcels: dict[str, bytes | list[ray.ObjectRef[bytes]]] = {}
        self._claims: dict[str, Iterator[int]] = {}

    def put(self, key: str, content: bytes) -> None:
        # Of what is large Ray copies one object to each host.
        self._parcels[key] = [ray.put(content)] if len(content) > _SMALL_BYTES else content

    def get(self, key: str) -> bytes | list[ray.ObjectRef[bytes]] | None:
        """Returns a parcel, or a reference to it in a list; None if nobody has left it yet."""
        return self._parcels.get(key)

    def claim(self, key: str) -> int:
        """Returns how often this was called for the key before."""
        return next(self._claims.setdefault(key, itertools.count()))


class RayParcels:
    """Implements data.shared.Parcels."""

    def __init__(self, keeper: Any) -> None:
        """Takes the actor that keeps the parcels; it has `put_parcel`, `get_parcel` and `claim_parcel`."""
        self._keeper = keeper

    def put(self, key: str, content: bytes) -> None:
        self._keeper.put_parcel.remote(key, content)

    def get(self, key: str) -> bytes:
        # Without a limit: a task whose run is gone is ended by its agent.
        pause_s = _FIRST_POLL_S
        with _errors_told():
            while (found := ray.get(self._keeper.get_parcel.remote(key))) is None:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_POLL_S)
            content: Any = ray.get(found[0]) if isinstance(found, list) else found
        return bytes(content)

    def claim(self, key: str) -> int:
        with _errors_told():
            return int(ray.get(self._keeper.claim_parcel.remote(key)))


@contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"what tasks leave for each other cannot be fetched from the chief: {error}"
        ) from error
