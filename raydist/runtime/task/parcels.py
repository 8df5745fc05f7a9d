"""RayParcels: what tasks leave for each other past the run's storage, with the chief's agent."""

from __future__ import annotations

import time
from typing import Any, Protocol

import ray

from raydist.errors import ClusterError

_POLL_S = 0.1


class Parcels(Protocol):
    """As training.parameter_server.sources has it."""

    def put(self, key: str, content: bytes) -> None: ...

    def get(self, key: str) -> bytes: ...


class RayParcels:
    """Implements training.parameter_server.sources.Parcels."""

    def __init__(self, keeper: Any) -> None:
        """Takes the actor that keeps the parcels; it has `put_parcel` and `get_parcel`."""
        self._keeper = keeper

    def put(self, key: str, content: bytes) -> None:
        self._keeper.put_parcel.remote(key, content)

    def get(self, key: str) -> bytes:
        # Without a limit: a task whose run is gone is ended by its agent.
        try:
            while (content := ray.get(self._keeper.get_parcel.remote(key))) is None:
                time.sleep(_POLL_S)
        except ray.exceptions.RayError as error:
            raise ClusterError(f"what the chief left for this task cannot be fetched: {error}") from error
        found: bytes = content
        return found
