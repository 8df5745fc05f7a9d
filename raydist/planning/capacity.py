"""Whether the hosts can hold a run's tasks. A task has to fit on one host."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Sequence

from raydist.errors import ClusterError
from raydist.planning.inventory import Host, Inventory
from raydist.spec.tasks import Resources, Role

LOGICAL_CPUS_PER_CORE = 8  # what an embedded Ray may be started with; more would only thrash
_ROUNDING = 1e-9  # 0.1 + 0.1 + 0.1 CPUs fill 0.3


def fits(inventory: Inventory, roles: Sequence[Role], *, cpus_per_core: int = 1) -> bool:
    """Whether the hosts hold all tasks of all roles at once when nothing else runs."""
    room = [
        dataclasses.replace(host, num_cpus=host.num_cpus * cpus_per_core)
        # Small hosts are filled first, and a task without GPUs goes where none would lie idle beside it.
        for host in sorted(inventory.hosts, key=lambda host: (host.num_gpus, host.num_tpus, host.num_cpus))
    ]
    # Which role has to come first hangs on what is scarce, CPUs or GPUs; there are four roles at most.
    return any(_all_placed(room, order) for order in itertools.permutations(roles))


def check_fits(inventory: Inventory, roles: Sequence[Role]) -> None:
    """Raises ClusterError, which says what was asked and what there is, for what can never fit."""
    cpus_per_core = LOGICAL_CPUS_PER_CORE if inventory.is_embedded else 1
    if inventory.can_grow or fits(inventory, roles, cpus_per_core=cpus_per_core):
        return
    limit = f", at most {cpus_per_core} logical CPUs per core" if inventory.is_embedded else ""
    raise ClusterError(
        f"{describe_roles(roles)} can never fit: {inventory.source} has "
        f"{_describe_hosts(inventory.hosts)}{limit}; ask for fewer tasks, or for less with {_options(roles)}"
    )


def describe_roles(roles: Sequence[Role]) -> str:
    """Returns `1 chief (1 CPU), 3 workers (1 CPU each) and 2 ps (1 CPU each)`."""
    return _listed([str(role) for role in roles], "and")


def _all_placed(hosts: Sequence[Host], roles: Sequence[Role]) -> bool:
    """Whether first fit, role by role, finds a host for every task."""
    room = list(hosts)
    for role in roles:
        num_left = role.num_tasks
        for index, host in enumerate(room):
            num_here = min(num_left, _num_on(host, role.resources))
            if num_here > 0:
                room[index] = _without(host, role.resources, num_here)
                num_left -= num_here
        if num_left > 0:
            return False
    return True


def _num_on(host: Host, resources: Resources) -> int:
    has_and_needs = (
        (host.num_cpus, resources.num_cpus),
        (host.num_gpus, resources.num_gpus),
        (host.num_tpus, resources.num_tpus),
    )
    return min(
        (int(has / needs + _ROUNDING) for has, needs in has_and_needs if needs > 0), default=sys.maxsize
    )


def _without(host: Host, resources: Resources, num_tasks: int) -> Host:
    return dataclasses.replace(
        host,
        num_cpus=host.num_cpus - resources.num_cpus * num_tasks,
        num_gpus=host.num_gpus - resources.num_gpus * num_tasks,
        num_tpus=host.num_tpus - resources.num_tpus * num_tasks,
    )


def _options(roles: Sequence[Role]) -> str:
    options = [f"--cpus-per-{role.task_type.value}" for role in roles]
    if any(role.resources.num_gpus for role in roles):
        options.append("--gpus-per-worker")
    return _listed(options, "or")


def _describe_hosts(hosts: Sequence[Host]) -> str:
    if len(hosts) == 1:
        return _has(hosts[0])
    described = [f"{host.name} ({_has(host)})" for host in hosts]
    shown = ", ".join(described[:5]) or "no host"
    return f"{shown} and {len(described) - 5} more hosts" if len(described) > 5 else shown


def _has(host: Host) -> str:
    has = Resources(num_cpus=host.num_cpus, num_gpus=host.num_gpus, num_tpus=host.num_tpus)
    return str(has) if host.num_gpus else f"{has}, no GPU"


def _listed(words: Sequence[str], last: str) -> str:
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
