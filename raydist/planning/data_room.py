"""Room for Ray Data's own tasks, beside the tasks of a run that streams datasets through it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from raydist.errors import ClusterError, UnsupportedError
from raydist.planning.capacity import describe_roles, fits
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.spec.job import Strategy
from raydist.spec.tasks import AnyRole

# What one of Ray Data's tasks takes unless it is told otherwise. Without it nothing is ever read, and the
# workers wait for it until --stall-timeout.
_CPUS = 1.0


def with_data_room(plan: Plan) -> Plan:
    """Returns the plan of a run that is given datasets, with a CPU for them in an embedded Ray.

    Raises:
      UnsupportedError: The strategy's workers run no code of the user's that could ask for them.
      ClusterError: The tasks leave no CPU for Ray Data.
    """
    if plan.strategy is Strategy.PARAMETER_SERVER:
        raise UnsupportedError(
            "datasets are given, but under parameter_server no worker runs the train function that would ask "
            "for them; give ctx.fit a function that reads the files into a tf.data.Dataset, or use "
            "--strategy multi_worker_mirrored"
        )
    if plan.embedded_cpus is not None:
        return dataclasses.replace(plan, embedded_cpus=plan.embedded_cpus + int(_CPUS))
    inventory = plan.inventory
    if not inventory.can_grow and not fits(less_data_room(inventory, plan.all_roles), plan.all_roles):
        raise ClusterError(
            f"{describe_roles(plan.all_roles)} leave none of the {inventory.num_cpus:g} CPUs of "
            f"{inventory.source} to Ray Data, which needs 1 to read the datasets with; take less "
            "with --cpus-per-worker or --workers, or give Ray more: ray.init(num_cpus=...), "
            "ray start --num-cpus=..."
        )
    return plan


def less_data_room(inventory: Inventory, roles: Sequence[AnyRole]) -> Inventory:
    """Returns what is left for tasks once Ray Data has its CPU: on a host where `roles` still fit, if any."""
    by_cpus = sorted(inventory.hosts, key=lambda host: host.num_cpus, reverse=True)
    left = [_less(inventory, host) for host in by_cpus if host.num_cpus >= _CPUS]
    none = dataclasses.replace(inventory, hosts=())
    return next((each for each in left if fits(each, roles)), left[0] if left else none)


def _less(inventory: Inventory, host: Host) -> Inventory:
    smaller = dataclasses.replace(host, num_cpus=host.num_cpus - _CPUS)
    return dataclasses.replace(
        inventory, hosts=tuple(smaller if each is host else each for each in inventory.hosts)
    )
