"""Inventories and plans as the tests of this room want them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydist.planning.inventory import Host, Inventory
from raydist.planning.make_plan import make_plan
from raydist.planning.plan import Plan
from raydist.spec.job import EntryPoint, JobSpec, SourceFacts, WorkerRange
from raydist.spec.settings.options import OPTIONS
from raydist.spec.settings.resolution import Origin
from raydist.spec.settings.roles import by_name

OWN_STRATEGY = SourceFacts(strategy_use="a.py, line 3, uses tf.distribute")
LAPTOP = Inventory(hosts=(Host(name="this machine", num_cpus=2),), is_embedded=True)


def cluster(*hosts: tuple[float, int], can_grow: bool = False) -> Inventory:
    """Returns hosts h0, h1, … with these CPUs and GPUs."""
    named = [Host(name=f"h{i}", num_cpus=cpus, num_gpus=gpus) for i, (cpus, gpus) in enumerate(hosts)]
    return Inventory(hosts=tuple(named), can_grow=can_grow, source="Ray at h0:6379")


def workers(minimum: int, maximum: int | None = None) -> WorkerRange:
    return WorkerRange(minimum=minimum, maximum=maximum or minimum)


def plan(
    inventory: Inventory = LAPTOP,
    *,
    source: SourceFacts = OWN_STRATEGY,
    origins: Mapping[str, Origin] | None = None,
    **fields: Any,
) -> Plan:
    """Plans a job whose fields were all asked for, unless `origins` says otherwise."""
    entry_point = fields.pop("entry_point", EntryPoint(file="a.py", function="train"))
    job = JobSpec(name="run", entry_point=entry_point, **fields)
    asked = dict.fromkeys([*fields, *by_name(job.resources)], Origin.ASKED)
    by_field = {option.name: Origin.BUILT_IN for option in OPTIONS} | asked
    return make_plan(job, by_field | dict(origins or {}), inventory, source=source)
