"""TaskAssignment: everything one task is told before it may import TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from raydist.spec.job import JobSpec, KerasFlavour, Strategy
from raydist.spec.tasks import ClusterSpec, TaskId, chief_of


@dataclass(frozen=True, kw_only=True)
class TaskAssignment:
    """One task's part in one attempt.

    Attributes:
      strategy, keras: The plan's choices, never AUTO.
      address: `host:port` that this task's TensorFlow server listens at; None where it needs none.
      cluster_spec: The addresses of all tasks; empty for a single-host strategy.
      attempt: 0 for the first attempt.
      run_uri: URI of the run's folder on storage.
      num_workers, num_ps: Tasks of type worker and ps.
      gpus_per_worker: GPUs that each worker has, whatever this task is.
      devices: Logical CPU devices to create; None leaves TensorFlow's one.
      data_service: `host:port` of tf.data service's dispatcher; None for a run without data workers.
      tpu_name: TPU to connect to, for strategy tpu.
      datasets: This task's share of each dataset that the run was given, by name: Ray Data's
        `DataIterator`, which only the train function looks into.
      fenced_in: IP addresses of the only hosts that may reach `address`; None for all.
      role_hosts: Addresses of the extra roles' hosts, with commas, by environment variable.
      files: What it writes for its user, ctx.output_dir included: `Files` of raydist.task.
      kept: Where its states are kept in memory, and what an attempt before has kept: `HandedState` of
        storage.kept_state; None keeps none.
      parcels: What tasks leave for each other past storage: `Parcels` of data.shared.
    """

    task: TaskId
    job: JobSpec
    strategy: Strategy
    keras: KerasFlavour
    cluster_spec: ClusterSpec
    attempt: int
    run_uri: str
    num_workers: int
    num_ps: int = 0
    num_cpus: float = 1.0
    num_gpus: int = 0
    gpus_per_worker: int = 0
    address: str | None = None
    devices: int | None = None
    data_service: str | None = None
    tpu_name: str | None = None
    datasets: Mapping[str, Any] = field(default_factory=dict)
    fenced_in: tuple[str, ...] | None = None
    parcels: Any = None
    role_hosts: Mapping[str, str] = field(default_factory=dict)
    files: Any = None
    kept: Any = None

    def own_part(self, common: TaskAssignment) -> dict[str, Any]:
        """Returns the fields that differ from those of `common`, the assignment of another task.

        `dataclasses.replace(common, **own_part)` is this one again. All that is large is in `common`.
        """
        fields = ((each.name, getattr(self, each.name)) for each in dataclasses.fields(self))
        return {name: value for name, value in fields if _differ(value, getattr(common, name))}

    @property
    def is_chief(self) -> bool:
        """Whether this task writes checkpoints and summaries."""
        return self.task == chief_of(task_type for task_type, _ in self.cluster_spec.jobs)


def _differ(value: Any, other: Any) -> bool:
    return value is not other and bool(value != other)
