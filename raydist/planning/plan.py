"""Plan: what will be launched, decided, nothing started."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from raydist.planning.inventory import Inventory
from raydist.planning.threads import reserved_threads
from raydist.spec.job import JobSpec, KerasFlavour, RunOn, Strategy
from raydist.spec.tasks import AnyRole, Resources, Role, TaskId, TaskType
from raydist.spec.text import facts_html


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be launched for one attempt.

    Example:
        plan = raydist.plan("jobs/cifar.py", strategy="parameter_server", workers=3, ps=2)
        for task in plan.tasks:
            print(task, plan.resources_of(task))

    Attributes:
      strategy: The chosen strategy; never AUTO.
      keras: The chosen Keras; never AUTO.
      reason: One sentence: why this strategy.
      keras_reason: One sentence: why this Keras.
      job: What was asked, without what the strategy has no use for.
      roles: What to start; a single-host strategy has the one task worker/0.
      devices: Logical CPU devices per task; None leaves TensorFlow's one.
      has_default_strategy: Whether the job, which builds no strategy, runs in the scope of the run's.
      has_own_loop: Whether it builds none and does not, because it updates weights in a loop of its own.
      worker_threads: TensorFlow's threads in each worker.
      embedded_cpus: Logical CPUs to start an embedded Ray with; None on a running Ray.
      embedded_resources: Memory and custom resources to start an embedded Ray with, by Ray's names.
      avoid: Ray's ids of the nodes that no task is to go to.
      notes: Sentences about what was chosen on the user's behalf.
      speeds: How many rows each worker computes in a second, by its `slots_of`, as far as it was measured.
      given_up: The workers that an attempt continues without.
      uses_of_unfit_hosts: What the attempt does with each host that failed lately and still has a problem,
        half a sentence each.
    """

    job: JobSpec
    inventory: Inventory
    strategy: Strategy
    keras: KerasFlavour
    reason: str
    keras_reason: str = ""
    roles: tuple[Role, ...]
    devices: int | None = None
    has_default_strategy: bool = False
    has_own_loop: bool = False
    worker_threads: int = 1
    embedded_cpus: int | None = None
    embedded_resources: Mapping[str, float] = field(default_factory=dict)
    avoid: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)
    given_up: tuple[TaskId, ...] = ()
    uses_of_unfit_hosts: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Plan({self.job.name!r}, {self.strategy.value}, {self._roles_text()})"

    def _repr_html_(self) -> str:
        facts = [
            ("strategy", f"{self.strategy.value}: {self.reason}"),
            ("keras", self.keras.value),
            ("tasks", self._roles_text()),
            ("on", self.inventory.source),
            *(("note", note) for note in self.notes),
        ]
        return facts_html(f"plan of {self.job.name}", facts)

    def _roles_text(self) -> str:
        return ", ".join(f"{role.num_tasks} {role.task_type.value}" for role in self.roles)

    @functools.cached_property
    def tasks(self) -> tuple[TaskId, ...]:
        """Every task of the attempt, such as worker/0."""
        return tuple(task for role in self.roles for task in role.tasks if task not in self.given_up)

    @property
    def all_roles(self) -> tuple[AnyRole, ...]:
        """The roles, and those with a command of their own."""
        return (*self.roles, *self.job.roles.values())

    @property
    def num_workers(self) -> int:
        """Tasks of type worker."""
        planned = sum(role.num_tasks for role in self.roles if role.task_type is TaskType.WORKER)
        return planned - len(self.given_up)

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers may change."""
        return self.job.workers.minimum < self.job.workers.maximum

    @property
    def follows_workers(self) -> bool:
        """Whether the chief of parameter servers takes workers at other addresses than at the start.

        A fence lets only the hosts of the start through.
        """
        return self.strategy is Strategy.PARAMETER_SERVER and not self.job.fence

    @property
    def resizes_in_place(self) -> bool:
        """Whether workers come and go while an attempt continues.

        Not those that run the script themselves, with the cluster of the start.
        """
        return self.is_elastic and self.follows_workers and self.job.run_on is not RunOn.ALL

    @property
    def num_slots(self) -> int:
        """Workers that TensorFlow's cluster has room for, as some may come later."""
        return self.job.workers.maximum if self.resizes_in_place else self.num_workers

    def threads_of(self, role: Role) -> int:
        """Returns TensorFlow's threads in each task of the role."""
        return self.worker_threads if role.task_type is TaskType.WORKER else reserved_threads(role.resources)

    def resources_of(self, task: TaskId) -> Resources:
        """Returns the logical CPUs and GPUs that the task reserves."""
        return next(role.resources for role in self.roles if role.task_type is task.task_type)
