"""Tasks, the roles they form, and what they ask of a host.

A role of TensorFlow's cluster has TaskIds. An extra role runs a command alongside the training: ExtraTasks.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from raydist.errors import SpecError
from raydist.spec.quantities import write_bytes
from raydist.spec.text import counted

# What Ray's resource for a kind of GPU begins with; a host with an A100 has 1 of `accelerator_type:A100`.
ACCELERATOR_TYPE = "accelerator_type:"
# How much of it Ray's own `accelerator_type` takes.
ACCELERATOR_SHARE = 0.001


class TaskType(enum.Enum):
    """TensorFlow's four task types, and one that serves training from outside TensorFlow's cluster."""

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"
    DATA_WORKER = "data-worker"  # of tf.data service; the first one is the dispatcher too


@dataclass(frozen=True, kw_only=True, order=True)
class TaskId:
    """One task of an attempt, written `worker/0`; in path names `worker-0`."""

    task_type: TaskType
    index: int

    def __hash__(self) -> int:
        # All that a controller knows is kept by task: the generated one takes five times as long.
        return self.index

    def __reduce__(self) -> tuple[Any, ...]:
        # One object for each task, so that a look-up need not compare what came from another process.
        return _interned, (self.task_type, self.index)

    def __str__(self) -> str:
        return f"{self.task_type.value}/{self.index}"

    @property
    def path_name(self) -> str:
        return f"{self.task_type.value}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Returns the task that `text` (`worker/0`) names; raises SpecError for anything else."""
        task_type, _, index = text.partition("/")
        if task_type not in {member.value for member in TaskType} or not index.isdecimal():
            raise SpecError(f"{text!r} is not a task; write TYPE/INDEX, such as worker/0")
        return cls(task_type=TaskType(task_type), index=int(index))


@functools.cache
def _interned(task_type: TaskType, index: int) -> TaskId:
    return TaskId(task_type=task_type, index=index)


def chief_of(task_types: Iterable[TaskType]) -> TaskId:
    """Returns the task that writes checkpoints and summaries: chief/0 if there is one, else worker/0."""
    has_chief = TaskType.CHIEF in task_types
    return TaskId(task_type=TaskType.CHIEF if has_chief else TaskType.WORKER, index=0)


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What one task asks of its host.

    Attributes:
      num_cpus: Logical CPUs.
      num_gpus: Whole GPUs; 0 hides every GPU from the task.
      num_tpus: TPU chips of Ray's `TPU` resource; 0 for a TPU that is reached by name.
      memory_bytes: Of Ray's `memory` resource; 0 reserves none.
      custom: Names and amounts of the cluster's own resources, `accelerator_type:…` included.
      labels: What the labels of the host have to be, as pairs of a label and Ray's expression for its value:
        `a`, `!a`, `in(a,b)` or `!in(a,b)`.
    """

    num_cpus: float = 1.0
    num_gpus: int = 0
    num_tpus: float = 0.0
    memory_bytes: int = 0
    custom: tuple[tuple[str, float], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for field_name in ("num_cpus", "num_gpus", "num_tpus", "memory_bytes"):
            value = getattr(self, field_name)
            if value < 0:
                raise SpecError(f"{field_name} is {value}; need 0 or more")

    @property
    def amounts(self) -> dict[str, float]:
        """What is asked for by the names that Ray has for it, without what is 0."""
        amounts = {
            "CPU": self.num_cpus,
            "GPU": self.num_gpus,
            "TPU": self.num_tpus,
            "memory": self.memory_bytes,
            **dict(self.custom),
        }
        return {name: float(amount) for name, amount in amounts.items() if amount}

    def __str__(self) -> str:
        """Returns `1 CPU, 2 GPUs`: the CPUs, and what else is asked for."""
        shown = [counted(float(self.num_cpus), "CPU")]
        if self.num_gpus:
            shown.append(counted(self.num_gpus, "GPU"))
        if self.num_tpus:
            shown.append(f"{self.num_tpus:g} TPU chips")
        if self.memory_bytes:
            shown.append(f"{write_bytes(self.memory_bytes)} of memory")
        for name, amount in self.custom:
            is_type = name.startswith(ACCELERATOR_TYPE)
            shown.append(name.removeprefix(ACCELERATOR_TYPE) if is_type else f"{amount:g} {name}")
        shown += [f"{label}={value}" for label, value in self.labels]
        return ", ".join(shown)


@dataclass(frozen=True, kw_only=True)
class TaskResources:
    """What the user asks for, for each task of a role.

    Attributes:
      cpus: Logical CPUs.
      memory: Bytes to reserve; None reserves none.
      gpus: GPUs; None lets the plan choose for workers, and is none for other roles.
      resources: Custom Ray resources, by name.
    """

    cpus: float = 1.0
    memory: int | None = None
    gpus: int | None = None
    resources: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Role:
    """A group of like tasks.

    Attributes:
      num_tasks: Processes to start; each one gets its own actor and `resources`.
    """

    task_type: TaskType
    num_tasks: int = 1
    resources: Resources = Resources()

    def __post_init__(self) -> None:
        if self.num_tasks < 1:
            raise SpecError(f"{self.task_type.value}.num_tasks is {self.num_tasks}; need at least 1")
        if self.task_type in (TaskType.CHIEF, TaskType.EVALUATOR) and self.num_tasks > 1:
            raise SpecError(f"{self.task_type.value}.num_tasks is {self.num_tasks}; TensorFlow allows one")

    def __str__(self) -> str:
        """Returns `1 chief (1 CPU)` or `3 workers (1 CPU, 1 GPU each)`."""
        if self.num_tasks == 1:
            return f"1 {self.task_type.value} ({self.resources})"
        plural = "" if self.task_type is TaskType.PS else "s"
        return f"{self.num_tasks} {self.task_type.value}{plural} ({self.resources} each)"

    @property
    def name(self) -> str:
        return self.task_type.value

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        return tuple(_interned(self.task_type, index) for index in range(self.num_tasks))


@dataclass(frozen=True, kw_only=True)
class ClusterSpec:
    """TensorFlow's map from task type to the addresses of its tasks.

    Attributes:
      jobs: Pairs of task type and `host:port` list, in TensorFlow's order (chief, worker, ps);
        empty for a single-host strategy, whose task gets no TF_CONFIG.
    """

    jobs: tuple[tuple[TaskType, tuple[str, ...]], ...] = ()

    def as_dict(self) -> dict[str, list[str]]:
        return {task_type.value: list(addresses) for task_type, addresses in self.jobs}


MAX_TASKS = 1_000  # of one extra role
NAME_PATTERN = re.compile(r"[a-z](?:[a-z0-9-]{0,38}[a-z0-9])?")
_TASK_PATTERN = re.compile(rf"({NAME_PATTERN.pattern})/([0-9]{{1,6}})")


@dataclass(frozen=True, kw_only=True)
class ExtraTask:
    """One process of an extra role, written `features/0`; it is in no TF_CONFIG."""

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}/{self.index}"

    @property
    def path_name(self) -> str:
        """The task in path names: `features-0`."""
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, kw_only=True)
class ExtraRole:
    """A command that runs alongside the training, `num_tasks` times.

    Attributes:
      command: The program and its arguments; no shell reads them.
      resources: What each task reserves on its host.
      may_fail: Whether the run continues without a task that fails, with a note.
    """

    name: str
    command: tuple[str, ...]
    num_tasks: int = 1
    resources: Resources = field(default_factory=Resources)
    may_fail: bool = False

    def __post_init__(self) -> None:
        if self.name in {member.value for member in TaskType}:
            raise SpecError(f"roles has {self.name}, which is a task type of raydist; choose another name")
        if not NAME_PATTERN.fullmatch(self.name):
            raise SpecError(
                f"roles has {self.name!r}; write a name of lower-case letters, digits and '-' that begins "
                "with a letter, at most 40 characters, such as features"
            )
        if not self.command:
            raise SpecError(f"roles.{self.name}.command is empty; write a program and its arguments")
        if not 1 <= self.num_tasks <= MAX_TASKS:
            raise SpecError(f"roles.{self.name}.count is {self.num_tasks}; write 1 to {MAX_TASKS}")

    def __str__(self) -> str:
        """Returns `2 features (1 CPU each)`."""
        each = " each" if self.num_tasks > 1 else ""
        return f"{self.num_tasks} {self.name} ({self.resources}{each})"

    @property
    def tasks(self) -> tuple[ExtraTask, ...]:
        return tuple(ExtraTask(role=self.name, index=index) for index in range(self.num_tasks))

    @property
    def hosts_variable(self) -> str:
        """The environment variable with the addresses of its hosts, which each task of TensorFlow has."""
        return f"RAYDIST_HOSTS_{self.name.replace('-', '_').upper()}"

    def as_written(self) -> dict[str, Any]:
        """Returns the role in the form of a config file."""
        return {
            "command": list(self.command),
            "count": self.num_tasks,
            "cpus": self.resources.num_cpus,
            "memory": self.resources.memory_bytes or None,
            "gpus": self.resources.num_gpus,
            "resources": dict(self.resources.custom),
            "may_fail": self.may_fail,
        }


AnyTask: TypeAlias = TaskId | ExtraTask
AnyRole: TypeAlias = Role | ExtraRole
ExtraRoles: TypeAlias = Mapping[str, ExtraRole]


def parse_any_task(text: str) -> AnyTask:
    """Returns the task that `worker/0` or `features/0` names; raises SpecError for anything else."""
    match = _TASK_PATTERN.fullmatch(text)
    if match is None or match[1] in {member.value for member in TaskType}:
        return TaskId.parse(text)
    return ExtraTask(role=match[1], index=int(match[2]))
