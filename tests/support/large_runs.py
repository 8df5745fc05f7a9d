"""Runs of a thousand tasks and more, of which only what a controller sees is made."""

from __future__ import annotations

import pickle
from typing import Any

from raydist.controller import journal
from raydist.controller.events import GroupUpdated
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import TaskPace, TaskState, TaskStatus
from raydist.spec.job import Strategy
from tests.support.fakes import make_plan

TASKS_PER_HOST = 8


def large_machine(num_tasks: int, **options: Any) -> RunMachine:
    """Returns the machine of a run of workers."""
    return RunMachine(make_plan(workers=num_tasks, **{"strategy": Strategy.MULTI_WORKER_MIRRORED, **options}))


def statuses_at(
    machine: RunMachine, step: int, *, state: TaskState = TaskState.RUNNING, every: int = 1
) -> tuple[TaskStatus, ...]:
    """Returns the status of each `every`th task after so many steps, as it comes from another process."""
    statuses = tuple(
        TaskStatus(
            task=task,
            state=state,
            pid=100 + number,
            host=_host(number),
            address=f"{_host(number)}:{30000 + number % TASKS_PER_HOST}",
            step=step,
            num_steps=1_000_000,
            steps_per_s=2.0,
            first_step_at_s=1.0,
            first_step=1,
            metrics={"loss": 1.0 / (1 + step)},
            peak_memory_bytes=1 << 30,
            memory_limit_bytes=64 << 30,
            pace=TaskPace(at_s=step / 2, steps=step, input_wait_s=0.1, collective_wait_s=0.2),
            notes=("what was chosen for the user",),
            at_s=step / 2,
        )
        for number, task in enumerate(machine.plan.tasks)
        if number % every == 0
    )
    return pickle.loads(pickle.dumps(statuses))


def updated(statuses: tuple[TaskStatus, ...], *, at_s: float) -> GroupUpdated:
    update = GroupUpdate(statuses=statuses, all_placed=True, all_addressed=True)
    return GroupUpdated(update, 1000.0 + at_s, at_s)


def take(machine: RunMachine, event: GroupUpdated) -> list[dict[str, Any]]:
    """Has the machine take an update as the controller does; returns the events of the run."""
    known = journal.Known.of(machine)
    machine.handle(event)
    events = journal.news_events(machine, known, at_s=event.at_s)
    return [*events, journal.progress_event(machine, at_s=event.at_s, run_s=event.now_s, running_s=None)]


def _host(number: int) -> str:
    host = number // TASKS_PER_HOST
    return f"10.1.{host // 250}.{host % 250}"
