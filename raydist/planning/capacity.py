"""How many tasks the hosts can hold. A task has to fit on one host."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from raydist.errors import ClusterError
from raydist.planning.inventory import Host, Inventory
from raydist.spec.tasks import Resources

LOGICAL_CPUS_PER_CORE = 8  # what an embedded Ray may be started with; more would only thrash


def num_fitting(inventory: Inventory, resources: Resources, *, cpus_per_core: int = 1) -> int:
    """Returns how many tasks with these resources the hosts hold when nothing else runs."""
    return min(sum(_num_on(host, resources, cpus_per_core) for host in inventory.hosts), sys.maxsize)


def check_fits(inventory: Inventory, resources: Resources, *, num_tasks: int) -> None:
    """Raises ClusterError, which says what there is, for what can never fit."""
    cpus_per_core = LOGICAL_CPUS_PER_CORE if inventory.is_embedded else 1
    if inventory.can_grow or num_tasks <= num_fitting(inventory, resources, cpus_per_core=cpus_per_core):
        return
    amounts = _amounts(resources)
    asked = f"{num_tasks} workers with {amounts} each" if num_tasks > 1 else f"a worker with {amounts}"
    limit = f", at most {cpus_per_core} logical CPUs per core" if inventory.is_embedded else ""
    raise ClusterError(
        f"{asked} can never fit: {inventory.source} has {_describe(inventory.hosts)}{limit}; "
        "ask for fewer workers, or for less with --cpus-per-worker or --gpus-per-worker"
    )


def _num_on(host: Host, resources: Resources, cpus_per_core: int) -> int:
    has_and_needs = (
        (host.num_cpus * cpus_per_core, resources.num_cpus),
        (host.num_gpus, resources.num_gpus),
        (host.num_tpus, resources.num_tpus),
    )
    # The small addend: 0.1 + 0.1 + 0.1 CPUs fill 0.3.
    return min((int(has / needs + 1e-9) for has, needs in has_and_needs if needs > 0), default=sys.maxsize)


def _describe(hosts: Sequence[Host]) -> str:
    if len(hosts) == 1:
        return _amounts(hosts[0])
    described = [f"{host.name} ({_amounts(host)})" for host in hosts]
    shown = ", ".join(described[:5]) or "no host"
    return f"{shown} and {len(described) - 5} more hosts" if len(described) > 5 else shown


def _amounts(of: Host | Resources) -> str:
    cpus = f"{of.num_cpus:g} CPU{'' if of.num_cpus == 1 else 's'}"
    gpus = f"{of.num_gpus} GPU{'' if of.num_gpus == 1 else 's'}"
    return f"{cpus}, {gpus}, {of.num_tpus:g} TPU chips" if of.num_tpus else f"{cpus}, {gpus}"
