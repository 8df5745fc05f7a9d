"""ExtraRole: a command that runs beside the training, and the tasks that run it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from raydist.errors import SpecError
from raydist.spec.tasks import Resources, Role, TaskId, TaskType

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
    """A command that runs beside the training, `num_tasks` times.

    Attributes:
      command: The program and its arguments; no shell reads them.
      resources: What each task reserves on its host.
    """

    name: str
    command: tuple[str, ...]
    num_tasks: int = 1
    resources: Resources = field(default_factory=Resources)

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
        """Returns the role as a config file has it."""
        return {
            "command": list(self.command),
            "count": self.num_tasks,
            "cpus": self.resources.num_cpus,
            "memory": self.resources.memory_bytes or None,
            "resources": dict(self.resources.custom),
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
