"""What the hosts have, as data: the planner's only view of the hardware."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from raydist.errors import SpecError
from raydist.spec.quantities import parse_bytes

SIMULATED = "simulated:"
SIMULATED_EXAMPLE = "simulated:hosts=1250,cpus=8,gpus=8,memory=64GiB"
_SIMULATED_AMOUNTS = ("hosts", "cpus", "gpus", "tpus", "memory")
_MAX_HOSTS = 100_000


@dataclass(frozen=True, kw_only=True)
class Host:
    """One host of the Ray cluster.

    Attributes:
      name: Its address as Ray knows it, or a placeholder for an embedded Ray that is not started yet.
      node_id: Ray's node id; None when no Ray runs yet.
      num_cpus, num_gpus, num_tpus: Logical CPUs, GPUs and TPUs in all, whether busy or free.
      free_cpus: Logical CPUs that no actor or task of Ray has reserved; None where no Ray runs yet.
      memory_bytes: What tasks may reserve in all, whether reserved or free.
      custom: Custom Ray resources in all, by name.
      labels: As Ray knows them.
    """

    name: str
    node_id: str | None = None
    num_cpus: float = 1.0
    num_gpus: int = 0
    num_tpus: float = 0.0
    memory_bytes: int = 0
    custom: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    free_cpus: float | None = None

    @property
    def amounts(self) -> dict[str, float]:
        """What there is, by the names that Ray has for it."""
        own = {"CPU": self.num_cpus, "GPU": float(self.num_gpus), "TPU": self.num_tpus}
        return {**self.custom, **own, "memory": float(self.memory_bytes)}


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The hosts that a plan may use.

    Attributes:
      is_embedded: Whether Ray is to be started by raydist on this machine; its logical CPUs are then
        what the plan needs, up to 8 per core.
      can_grow: Whether an autoscaler may add hosts, so that what does not fit may still be waited for.
      tpu_name: TPU reached by name (TPU_NAME or COLAB_TPU_ADDR of the driver); None without one.
      source: Where it comes from, for messages: `this machine`, `Ray at 10.0.0.1:6379`.
    """

    hosts: tuple[Host, ...]
    is_embedded: bool = False
    can_grow: bool = False
    tpu_name: str | None = None
    source: str = "this machine"

    @property
    def num_cpus(self) -> float:
        return sum(host.num_cpus for host in self.hosts)

    @property
    def num_gpus(self) -> int:
        return sum(host.num_gpus for host in self.hosts)


def simulated_inventory(address: str) -> Inventory:
    """Returns the hosts that `simulated:hosts=N,cpus=N,gpus=N,tpus=N,memory=SIZE` describes, all alike.

    Raises:
      SpecError: It describes none.
    """
    amounts: dict[str, str] = {}
    for part in address.removeprefix(SIMULATED).split(","):
        name, equals, amount = part.partition("=")
        if name not in _SIMULATED_AMOUNTS or not equals or name in amounts:
            known = ", ".join(_SIMULATED_AMOUNTS)
            raise SpecError(
                f"address has {part!r}; a simulated cluster takes each of {known} once: {SIMULATED_EXAMPLE}"
            )
        amounts[name] = amount
    num_hosts = _whole(amounts, "hosts", at_least=1)
    host = {
        "num_cpus": float(_whole(amounts, "cpus", at_least=1)),
        "num_gpus": _whole(amounts, "gpus", at_least=0),
        "num_tpus": float(_whole(amounts, "tpus", at_least=0)),
        "memory_bytes": parse_bytes("memory of the simulated hosts", amounts.get("memory", 0)),
    }
    names = (f"host-{index}" for index in range(num_hosts))
    hosts = tuple(Host(name=name, node_id=name, **host) for name in names)  # type: ignore[arg-type]
    return Inventory(hosts=hosts, source="a simulated cluster")


def _whole(amounts: dict[str, str], name: str, *, at_least: int) -> int:
    written = amounts.get(name, str(at_least))
    if not re.fullmatch(r"[0-9]{1,9}", written) or not at_least <= int(written) <= _MAX_HOSTS:
        raise SpecError(
            f"address has {name}={written}; write a whole number from {at_least} to {_MAX_HOSTS}, "
            f"as in {SIMULATED_EXAMPLE}"
        )
    return int(written)
