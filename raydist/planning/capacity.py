"""Whether the hosts can hold a run's tasks, and what they lack. A task has to fit on one host."""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence

from raydist.errors import ClusterError, UnsupportedError
from raydist.planning.inventory import Host, Inventory
from raydist.spec.quantities import write_bytes
from raydist.spec.tasks import ACCELERATOR_TYPE, AnyRole, ExtraRole, Resources, Role, TaskType
from raydist.spec.text import counted

_IN = re.compile(r"(?P<negation>!?)in\((?P<values>[^()]*)\)")


def fulfils(labels: Mapping[str, str], selector: Iterable[tuple[str, str]]) -> bool:
    """Whether a host's labels are what a task wants of each."""
    return all(matches(labels.get(label), wanted) for label, wanted in selector)


def matches(label: str | None, wanted: str) -> bool:
    """Whether a label fulfils an expression: `a`, `!a`, `in(a,b)` or `!in(a,b)`.

    Args:
      label: The host's value; None for a host without that label, which fulfils what is negated.
    """
    listed = _IN.fullmatch(wanted)
    if listed is not None:
        is_in = label in [value.strip() for value in listed["values"].split(",")]
        return is_in is not bool(listed["negation"])
    return label != wanted[1:] if wanted.startswith("!") else label == wanted


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
            return counted(float(amount), name)
        case "TPU":
            return f"{amount:g} TPU chips"
        case _ if name.startswith(ACCELERATOR_TYPE):
            return name.removeprefix(ACCELERATOR_TYPE) if amount else "none"
        case _:
            return f"{amount:g} {name}"


LOGICAL_CPUS_PER_CORE = 8  # what an embedded Ray may be started with; more would only thrash
_MAX_SHOWN = 5


def fits(inventory: Inventory, roles: Sequence[AnyRole], *, cpus_per_core: int = 1) -> bool:
    """Whether the hosts hold all tasks of all roles at once when nothing else runs."""
    room = [
        room_of(host, cpus_per_core=cpus_per_core)
        # Small hosts are filled first, and a task without GPUs goes where none would lie idle beside it.
        for host in sorted(inventory.hosts, key=lambda host: (host.num_gpus, host.num_tpus, host.num_cpus))
    ]
    # Which role has to come first hangs on what is scarce, CPUs or GPUs. There are five roles of tasks at
    # most; extra ones, of which there may be many, come before or after them.
    extras = [role for role in roles if isinstance(role, ExtraRole)]
    orders = itertools.permutations(role for role in roles if not isinstance(role, ExtraRole))
    return any(
        _all_placed(room, [*extras, *order]) or _all_placed(room, [*order, *extras]) for order in orders
    )


def num_at_once(
    inventory: Inventory, roles: Sequence[AnyRole], *, cpus_per_core: int | None = None, most: int = 10_000
) -> int:
    """Returns how many runs with these roles the hosts hold at once when nothing else runs; at least 1.

    Args:
      cpus_per_core: Logical CPUs that each core of the hosts has; None for as many as an embedded Ray may be
        started with, or one of a running Ray.
      most: What is returned at most, as for a run that asks for nothing.
    """
    if cpus_per_core is None:
        cpus_per_core = LOGICAL_CPUS_PER_CORE if inventory.is_embedded else 1

    def fit(count: int) -> bool:
        # Of what type the tasks are does not matter here, and of some TensorFlow allows one.
        many = [
            Role(task_type=TaskType.WORKER, num_tasks=role.num_tasks * count, resources=role.resources)
            for role in roles
        ]
        return fits(inventory, many, cpus_per_core=cpus_per_core)

    low, high = 1, 2
    while high <= most and fit(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fit(middle) else (low, middle)
    return min(low, most)


def check_fits(inventory: Inventory, roles: Sequence[AnyRole]) -> None:
    """Raises ClusterError, which says what was asked and what there is, for what can never fit."""
    cpus_per_core = LOGICAL_CPUS_PER_CORE if inventory.is_embedded else 1
    if inventory.can_grow or fits(inventory, roles, cpus_per_core=cpus_per_core):
        return
    sharing = ""
    if len(inventory.hosts) == 1 and fits(inventory, roles, cpus_per_core=LOGICAL_CPUS_PER_CORE):
        # As a Ray that the run starts for itself would.
        needed = math.ceil(round(sum(role.num_tasks * role.resources.num_cpus for role in roles), 6))
        sharing = (
            f"let them share cores with a Ray started by `raydist up --num-cpus {needed}` or `ray start "
            f"--num-cpus {needed}`, or with one of the run's own, --address local; or "
        )
    limit = f", at most {cpus_per_core} logical CPUs per core" if inventory.is_embedded else ""
    raise ClusterError(
        f"{describe_roles(roles)} can never fit: {inventory.source} has "
        f"{_describe_hosts(inventory.hosts)}{limit}{_misfits(inventory, roles, cpus_per_core)}; "
        f"{sharing}ask for fewer tasks, or for less with {_options(roles)}"
    )


def check_fits_beside(free: Inventory, roles: Sequence[AnyRole]) -> None:
    """Raises UnsupportedError where a run that a task of another run starts would wait for that run's room.

    Args:
      free: What nobody has reserved.
    """
    if free.can_grow or fits(free, roles):
        return
    has = f"{_describe_hosts(free.hosts)} free{_misfits(free, roles, 1)}"
    raise UnsupportedError(
        f"{describe_roles(roles)} do not fit beside the run whose task starts them: {free.source} has {has}. "
        "That run keeps its room until it ends, so this one would wait for ever; make the cluster larger, or "
        f"ask for less, in either run, with {_options(roles)}"
    )


def describe_roles(roles: Sequence[AnyRole]) -> str:
    """Returns `1 chief (1 CPU), 3 workers (1 CPU each) and 2 ps (1 CPU each)`."""
    return _listed([str(role) for role in roles], "and")


def _all_placed(hosts: Sequence[Room], roles: Sequence[AnyRole]) -> bool:
    """Whether first fit, role by role, finds a host for every task."""
    room = list(hosts)
    for role in roles:
        num_left = role.num_tasks
        for index, (labels, has) in enumerate(room):
            num_here = min(num_left, num_on((labels, has), role.resources))
            if num_here > 0:
                taken = role.resources.amounts
                room[index] = (
                    labels,
                    {name: amount - taken.get(name, 0.0) * num_here for name, amount in has.items()},
                )
                num_left -= num_here
        if num_left > 0:
            return False
    return True


def _options(roles: Sequence[AnyRole]) -> str:
    extras = [role for role in roles if isinstance(role, ExtraRole)]
    trainers = [role for role in roles if not isinstance(role, ExtraRole)]
    options = [f"--cpus {role.name}=N" for role in trainers]
    options += [f"--gpus {role.name}=N" for role in trainers if role.resources.num_gpus]
    options += [f"--memory {role.name}=SIZE" for role in trainers if role.resources.memory_bytes]
    customs = [(role, name) for role in trainers for name, _ in role.resources.custom]
    options += [
        "--accelerator-type" if name.startswith(ACCELERATOR_TYPE) else f"--resources {role.name}={name}:N"
        for role, name in customs
    ]
    if any(role.resources.labels for role in trainers):
        options.append("--label-selector")
    options += [f"roles.{role.name} of the config" for role in extras]
    return _listed(list(dict.fromkeys(options)), "or")


def _misfits(inventory: Inventory, roles: Sequence[AnyRole], cpus_per_core: int) -> str:
    """Returns why no host fits a role at all, for roles that ask for more than CPUs, GPUs and TPUs."""
    sentences = []
    for role in roles:
        asked = role.resources
        if not (asked.memory_bytes or asked.custom or asked.labels):
            continue
        reasons = [(host, why_not(host, asked, cpus_per_core=cpus_per_core)) for host in inventory.hosts]
        if all(reason is not None for _, reason in reasons):
            shown = ", ".join(f"{host.name} ({reason})" for host, reason in reasons[:_MAX_SHOWN])
            sentences.append(f"; no host fits a {role.name}: {shown or 'there is none'}")
    return "".join(sentences)


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
