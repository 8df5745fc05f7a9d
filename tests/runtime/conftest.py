from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import TaskState, TaskStatus
from raydist.planning.inventory import Host, Inventory
from raydist.planning.plan import Plan
from raydist.spec.job import EntryPoint, JobSpec, KerasFlavour, PortRange, Strategy, WorkerRange
from raydist.spec.tasks import Resources, Role, TaskId, TaskType
from raydist.storage.filesystem import Storage
from raydist.storage.logs import read_log
from raydist.storage.proof import StorageProof
from raydist.storage.run_storage import RunStorage

COUNTING = "tests.support.runners:CountingRunner"


def make_plan(
    num_workers: int = 2, *, num_cpus: float = 1.0, ports: PortRange | None = None, **params: Any
) -> Plan:
    job = JobSpec(
        name="run",
        entry_point=EntryPoint(function="train", module="unused"),
        params=params,
        workers=WorkerRange(minimum=num_workers, maximum=num_workers),
        ports=ports,
    )
    workers = Role(task_type=TaskType.WORKER, num_tasks=num_workers, resources=Resources(num_cpus=num_cpus))
    return Plan(
        job=job,
        inventory=Inventory(hosts=(Host(name="here"),)),
        strategy=Strategy.MULTI_WORKER_MIRRORED,
        keras=KerasFlavour.KERAS_3,
        reason="a test",
        roles=(workers,),
    )


def make_ps_plan(
    num_workers: int = 2,
    *,
    num_ps: int = 1,
    has_evaluator: bool = False,
    ports: PortRange | None = None,
    cpus_per_worker: float = 0.5,
    cpus_per_ps: float = 0.5,
    **params: Any,
) -> Plan:
    """Returns a plan whose tasks count for as long as a test may take, unless `steps` is given."""
    plan = make_plan(num_workers, num_cpus=cpus_per_worker, ports=ports, **{"steps": 100_000, **params})
    half = Resources(num_cpus=0.5)
    roles = [Role(task_type=TaskType.CHIEF, resources=half), *plan.roles]
    ps_resources = Resources(num_cpus=cpus_per_ps)
    roles.append(Role(task_type=TaskType.PS, num_tasks=num_ps, resources=ps_resources))
    if has_evaluator:
        roles.append(Role(task_type=TaskType.EVALUATOR, resources=half))
    return dataclasses.replace(plan, strategy=Strategy.PARAMETER_SERVER, roles=tuple(roles))


class Drive:
    """Polls one group and keeps what it told."""

    def __init__(self, group: Any, storage_path: Path) -> None:
        self.group = group
        self.statuses: dict[str, TaskStatus] = {}
        self.update = GroupUpdate()
        self._storage_path = storage_path

    def poll(self, *, timeout_s: float = 0.5) -> None:
        self.update = self.group.poll(timeout_s=timeout_s)
        self.statuses.update({str(status.task): status for status in self.update.statuses})

    def state(self, task: str) -> TaskState:
        return self.statuses[task].state if task in self.statuses else TaskState.PENDING

    def all_in(self, state: TaskState, *tasks: str) -> bool:
        """Polls; whether the tasks are all in `state`. Fails at once when one ended otherwise."""
        self.poll()
        for task in tasks:
            ended = self.state(task).is_terminal and self.state(task) is not state
            assert not ended, f"{task}: {self.statuses[task]}"
        return all(self.state(task) is state for task in tasks)

    def log(self, task: str) -> str:
        storage = Storage.open(str(self._storage_path))
        return read_log(RunStorage(storage, run="run"), task=TaskId.parse(task), attempt=0)


@contextmanager
def starting(connection: Any, storage_path: Path) -> Iterator[Callable[..., Drive]]:
    """Yields a function that starts a group, of counting runners by default; stops each at the end."""
    from raydist.runtime.group.group import LaunchSpec, RayTaskGroup

    with ExitStack() as stack:

        def start_group(
            plan: Plan,
            *,
            runner: str = COUNTING,
            code: bytes | None = None,
            proof: StorageProof | None = None,
            datasets: Mapping[str, Any] | None = None,
        ) -> Drive:
            launch = LaunchSpec(
                connection=connection,
                storage_uri=str(storage_path),
                run_uri=str(storage_path / "run"),
                code=code,
                runner=runner,
                datasets=datasets or {},
            )
            group = RayTaskGroup.start(plan, launch, attempt=0, proof=proof)
            stack.callback(group.stop)
            return Drive(group, storage_path)

        yield start_group


Start = Callable[..., Drive]


@pytest.fixture
def start(ray_cluster: Any, no_leaks: None, tmp_path: Path) -> Iterator[Callable[..., Drive]]:
    """Starts a group on the session's Ray."""
    with starting(ray_cluster, tmp_path) as start_group:
        yield start_group
