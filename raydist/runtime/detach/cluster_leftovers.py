"""Clears up on the hosts of a Ray what the tasks of controllers that died have left there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import ray
from ray.exceptions import RayError

from raydist.runtime.cluster.inventory import alive_nodes, remote_on
from raydist.runtime.host.ray_session import sweep_host
from raydist.runtime.host.salvage import clear_here

logger = logging.getLogger(__name__)

# More than a host takes to wait for its processes' deaths, kill them, and store the ends of their logs.
_TIMEOUT_S = 30.0


def clear(owner: str, *, storage_uri: str, run: str) -> None:
    """Ends what processes with that mark are left on any host, and stores the ends of their logs.

    Ray itself ends the actors of a controller that dies, and gives their room back; this waits until they
    are gone. A host that does not answer is left alone: the attempt in a checkpoint's name fences it off.
    """
    refs = [
        remote_on(node["NodeID"], clear_here).remote(owner, storage_uri=storage_uri, run=run)
        for node in alive_nodes()
    ]
    ready, late = ray.wait(refs, num_returns=len(refs), timeout=_TIMEOUT_S)
    for ref in ready:
        try:
            ray.get(ref)
        except RayError as error:
            logger.warning("a host could not be cleared: %s", error)
    if late:
        logger.warning("%d of %d hosts could not be cleared in time", len(late), len(refs))


@contextlib.contextmanager
def swept_beside() -> Iterator[None]:
    """Has the other hosts of the connected Ray remove what dead drivers left there, in the background.

    A host with a task of the run does so anyway. Nothing waits for the others, nor fails with them.
    """
    refs = _sweep_others()
    try:
        yield
    finally:
        with contextlib.suppress(RayError):
            if refs and ray.is_initialized():  # otherwise `wait` would start a Ray
                for ref in ray.wait(refs, num_returns=len(refs), timeout=0)[1]:
                    ray.cancel(ref)


def _sweep_others() -> list[Any]:
    own_id = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in alive_nodes() if node["NodeID"] != own_id]
    return [remote_on(node_id, sweep_host).remote() for node_id in others]
