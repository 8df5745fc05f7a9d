"""Whether an address is one that the whole internet may reach."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from raydist.errors import ClusterError
from raydist.runtime.host.address import split_address
from raydist.spec.tasks import TaskId


def is_public(host: str) -> bool:
    """Whether an IP address is routed on the internet; a host name is not looked up and counts as private."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_global


def check_not_public(listening: Mapping[TaskId, str]) -> None:
    """Raises ClusterError if a task would listen at a public address.

    Args:
      listening: Tasks with a server of TensorFlow's, each with its `host:port`.
    """
    for task, address in listening.items():
        host, _ = split_address(address)
        if is_public(host):
            raise ClusterError(
                f"{task} would listen at {address}, and {host} is a public address: whoever reaches "
                "TensorFlow's server there can run code on that host; start Ray with the host's private "
                "address (ray start --node-ip-address=…), or, if a firewall closes the port to others, give "
                "--allow-public-ports",
                task=str(task),
            )
