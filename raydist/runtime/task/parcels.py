"""RayParcels: what tasks of an attempt leave for each other in Ray's object store, past the run's storage."""

from __future__ import annotations

import threading
import time
from typing import Any

import ray

from raydist.errors import ClusterError

_POLL_S = 0.2
_WAIT_S = 10.0


class RayParcels:
    """Implements training.parameter_server.sources.Parcels. The references are kept by the mailbox."""

    def __init__(self, mailbox_name: str) -> None:
        self._mailbox_name = mailbox_name
        self._refs: list[Any] = []

    def put(self, key: str, content: bytes) -> None:
        ref = ray.put(content)
        self._refs.append(ref)  # the mailbox may not have it yet
        # The mailbox may open later than a train function begins, which is not to wait for it.
        threading.Thread(target=self._post, args=(key, ref), name="raydist-parcel", daemon=True).start()

    def get(self, key: str) -> bytes:
        # Without a limit: a task whose mailbox is gone or silent is ended by its actor.
        try:
            mailbox = find_mailbox(self._mailbox_name)
            while (found := ray.get(mailbox.get_parcel.remote(key, wait_s=_WAIT_S))) is None:
                pass
            content: bytes = ray.get(found[0])
        except ray.exceptions.RayError as error:
            raise ClusterError(f"what the chief left for this task cannot be fetched: {error}") from error
        return content

    def _post(self, key: str, ref: Any) -> None:
        mailbox = find_mailbox(self._mailbox_name)  # Ray 2.46 loses the actor of a handle that nobody holds
        mailbox.put_parcel.remote(key, [ref])


def find_mailbox(name: str) -> Any:
    """Waits for the mailbox, which the group opens once the tasks have started."""
    while True:
        try:
            return ray.get_actor(name)
        except ValueError:  # Ray's word for: there is none of that name
            time.sleep(_POLL_S)
