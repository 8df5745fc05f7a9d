"""What the Ray cluster has, as the planner's data."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raydist.planning.inventory import Host, Inventory
from raydist.planning.this_machine import tpu_name
from raydist.runtime.cluster import ray_internals
from raydist.runtime.cluster.connection import Connection
from raydist.runtime.cluster.reachability import not_listening
from raydist.runtime.host.address import join_address

# The kernel asks for a connection once more after 1 s, should the first word be lost.
_ANSWER_S = 2.0


def alive_nodes() -> list[Mapping[str, Any]]:
    """Returns the nodes that Ray counts on, as Ray describes them; a dead one is known after some seconds."""
    return [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def probe_inventory(connection: Connection, *, environ: Mapping[str, str] = os.environ) -> Inventory:
    """Returns the alive nodes of the connected Ray with all they have, busy or free."""
    free = ray_internals.free_resources()
    hosts = (
        dataclasses.replace(_host(node), free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0))
        for node in alive_nodes()
    )
    return Inventory(
        hosts=tuple(hosts),
        is_embedded=connection.is_embedded,
        can_grow=not connection.is_embedded and ray_internals.cluster_can_grow(),
        tpu_name=tpu_name(environ),
        source=connection.source,
    )


def probe_free(connection: Connection) -> Inventory:
    """Returns the alive nodes with what is free of them; none that are about to go away."""
    inventory, free = probe_inventory(connection), ray_internals.free_resources()
    going = ray_internals.draining_nodes()
    hosts = [
        dataclasses.replace(host, **_amounts(free.get(host.node_id or "", {})))
        for host in inventory.hosts
        if host.node_id not in going
    ]
    return dataclasses.replace(inventory, hosts=tuple(hosts))


def unreachable_hosts(*, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """Returns the addresses of the hosts that Ray counts on, but that are gone or have lost their Ray.

    To place anything there would hold up all placement groups of the cluster until Ray gives them up.

    Args:
      known: Hosts that are known to be gone, which are not asked again.
    """
    hosts = {
        join_address(node["NodeManagerAddress"], node["NodeManagerPort"]): node["NodeManagerAddress"]
        for node in alive_nodes()
        if node["NodeManagerAddress"] not in known
    }
    gone = not_listening(hosts.keys(), timeout_s=_ANSWER_S) if len(hosts) > 1 else ()
    there = {host for address, host in hosts.items() if address not in gone}  # a host may have several nodes
    return (frozenset(hosts.values()) - there) | known


def remote_on(node_id: str, function: Callable[..., Any]) -> Any:
    """Returns the function as a task of Ray on that node; it takes no CPU, and is not tried again."""
    there = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=there)


def is_node_alive(node_id: str) -> bool:
    """Whether Ray still counts on that node."""
    return any(node["NodeID"] == node_id for node in alive_nodes())


def is_node_there(node_id: str) -> bool:
    """Whether Ray counts on that node, and its daemon takes connections: Ray learns late of a dead one."""
    node = next((node for node in alive_nodes() if node["NodeID"] == node_id), None)
    if node is None:
        return False
    address = join_address(node["NodeManagerAddress"], node["NodeManagerPort"])
    return not not_listening([address], timeout_s=_ANSWER_S)


def labels_of_nodes() -> dict[str, Mapping[str, str]]:
    """Returns the labels of each node that is alive, by its id."""
    return {node["NodeID"]: _labels(node) for node in alive_nodes()}


def _labels(node: Mapping[str, Any]) -> Mapping[str, str]:
    return dict(node.get("Labels") or {})


def _host(node: Mapping[str, Any]) -> Host:
    return Host(
        name=node["NodeManagerAddress"],
        node_id=node["NodeID"],
        labels=_labels(node),
        **_amounts(node["Resources"]),
    )


def _amounts(resources: Mapping[str, float]) -> dict[str, Any]:
    return {
        "num_cpus": resources.get("CPU", 0.0),
        "num_gpus": int(resources.get("GPU", 0)),
        "num_tpus": resources.get("TPU", 0.0),
        "memory_bytes": int(resources.get("memory", 0)),
        "custom": {
            name: amount
            for name, amount in resources.items()
            if name not in ("CPU", "GPU", "TPU", "memory", "object_store_memory")
            and not name.startswith("node:")
            and "_group_" not in name  # what a placement group has reserved
        },
    }
