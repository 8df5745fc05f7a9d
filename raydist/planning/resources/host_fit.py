"""Which host has what a task asks for, how often, and what it lacks."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from raydist.planning.inventory import Host
from raydist.planning.resources.labels import fulfils, matches
from raydist.spec.quantities import write_bytes
from raydist.spec.tasks import ACCELERATOR_TYPE, Resources

_ROUNDING = 1e-9  # 0.1 + 0.1 + 0.1 CPUs fill 0.3

Room = tuple[Mapping[str, str], Mapping[str, float]]
"""A host's labels, and what is left there."""


def room_of(host: Host, *, cpus_per_core: int = 1) -> Room:
    """Returns all that a host has."""
    return host.labels, {**host.amounts, "CPU": host.num_cpus * cpus_per_core}


def num_on(room: Room, resources: Resources) -> int:
    """Returns how many such tasks find room."""
    labels, has = room
    if not fulfils(labels, resources.labels):
        return 0
    return min(
        (int(has.get(name, 0.0) / needs + _ROUNDING) for name, needs in resources.amounts.items()),
        default=sys.maxsize,
    )


def num_fitting(host: Host, resources: Resources, *, cpus_per_core: int = 1) -> int:
    """Returns how many such tasks the host holds when nothing else runs there."""
    return num_on(room_of(host, cpus_per_core=cpus_per_core), resources)


def why_not(host: Host, resources: Resources, *, cpus_per_core: int = 1) -> str | None:
    """Returns what a task asks for and the host does not have; None where the task fits."""
    _, has = room_of(host, cpus_per_core=cpus_per_core)
    lacks = [
        f"needs {describe_amount(name, needs)}, has {describe_amount(name, has.get(name, 0.0))}"
        for name, needs in resources.amounts.items()
        if has.get(name, 0.0) + _ROUNDING < needs
    ]
    for label, wanted in resources.labels:
        if not matches(host.labels.get(label), wanted):
            found = host.labels.get(label)
            lacks.append(f"needs label {label}={wanted}, has {'none' if found is None else found}")
    return "; ".join(lacks) or None


def describe_amount(name: str, amount: float) -> str:
    """Returns `2 CPUs`, `8 GiB of memory` or `1 ssd`."""
    match name:
        case "memory":
            return f"{write_bytes(int(amount))} of memory"
        case "CPU" | "GPU":
            return f"{amount:g} {name}{'' if amount == 1 else 's'}"
        case "TPU":
            return f"{amount:g} TPU chips"
        case _ if name.startswith(ACCELERATOR_TYPE):
            return name.removeprefix(ACCELERATOR_TYPE) if amount else "none"
        case _:
            return f"{amount:g} {name}"
