"""What a task gets before the tasks' addresses are known, and what it answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.task.fork_server import STATE_PREFIX
from raydist.spec.job import KerasFlavour, PortRange
from raydist.spec.tasks import Resources, TaskId
from raydist.storage.proof import StorageProof
from raydist.storage.provenance import Machine


@dataclass(frozen=True, kw_only=True)
class TaskSetup:
    """What a task gets before the tasks' addresses are known.

    Attributes:
      runner: `package.module:Class` of the TaskRunner.
      scratch_prefix: What the names of its processes' scratch folders begin with; unique on every host.
      num_threads: TensorFlow's threads as planned, of which the host may have fewer.
      tpu_name: TPU to connect to; None without one.
      may_vanish: Whether training continues without it, so that it ends at once by SIGTERM.
      may_move: Whether its peers learn of another address than theirs.
      proof: What the host has to find on storage; None checks nothing.
      address: `ip:port` that the task's peers connect to already, since this process takes the place of a
        dead one; None where any will do.
      env: The job's own variables.
      keep_warm_s: How long the host keeps what the task has imported.
      tells_packages: Whether its hello has what is installed on its host; one task does it for all.
    """

    task: TaskId
    runner: str
    keras: KerasFlavour
    resources: Resources
    log: LogTarget
    scratch_prefix: str
    ports: PortRange | None = None
    num_threads: int | None = None
    tpu_name: str | None = None
    may_vanish: bool = False
    may_move: bool = False
    proof: StorageProof | None = None
    address: str | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets
    keep_warm_s: float = 0.0
    tells_packages: bool = False

    @property
    def incarnation(self) -> int:
        return self.log.incarnation

    @property
    def scratch_name(self) -> str:
        return f"{self.scratch_prefix}-{self.incarnation}"

    def state_name(self, *, attempt: int) -> str:
        """Returns the name of the memory files that the task's agent has in an attempt of this submit."""
        owner = self.scratch_prefix.rpartition("-")[2]
        return f"{STATE_PREFIX}{owner}-{attempt}-{self.task.path_name}"

    def for_next_life(self, *, address: str | None) -> TaskSetup:
        """Returns the set-up of the process that takes this one's place."""
        log = dataclasses.replace(self.log, incarnation=self.incarnation + 1)
        return dataclasses.replace(self, log=log, address=address)


@dataclass(frozen=True, kw_only=True)
class Hello:
    """What a task sends once its process is up.

    Attributes:
      address: `ip:port` of the leased port, an IPv6 address in brackets.
      pid: That of the agent.
      host: The node's address as Ray knows it.
      versions: Of what has to be the same everywhere, by name.
      host_name: The name that the host has for itself.
      machine: What the host is made of.
      packages: Versions of all that is installed; empty unless it was asked for them.
    """

    task: TaskId
    address: str
    pid: int
    host: str
    node_id: str
    scratch_path: Path
    versions: Mapping[str, str] = field(default_factory=dict)
    host_name: str = ""
    machine: Machine | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
