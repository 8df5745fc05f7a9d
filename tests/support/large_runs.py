"""Runs of a thousand tasks and more, of which only what a controller sees is made."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Sequence
from typing import Any

from raydist.controller import journal
from raydist.controller.events import GroupUpdated
from raydist.controller.machine import RunMachine
from raydist.controller.task_group import GroupUpdate
from raydist.outcome.status import Report, TaskLink, TaskPace, TaskState, TaskStatus
from raydist.spec.job import Strategy
from tests.support.fakes import make_plan

TASKS_PER_HOST = 8
STEPS_PER_S = 2.0


def large_machine(num_tasks: int, **options: Any) -> RunMachine:
    """Returns the machine of a run of workers."""
    return RunMachine(make_plan(workers=num_tasks, **{"strategy": Strategy.MULTI_WORKER_MIRRORED, **options}))


def statuses_at(
    machine: RunMachine,
    step: int,
    *,
    state: TaskState = TaskState.RUNNING,
    tasks_per_host: int = TASKS_PER_HOST,
) -> tuple[TaskStatus, ...]:
    """Returns the status of each task after so many steps, as it comes from another process.

    All are alike. They wait for the network most of the time, over links to the hosts beside their own in the
    ring and to that of worker/0. Their memory grows, but not up to its limit before the end.
    """
    tasks = machine.plan.tasks
    links = _links(-(-len(tasks) // tasks_per_host))
    statuses = []
    for number, task in enumerate(tasks):
        host = number // tasks_per_host
        status = TaskStatus(
            task=task,
            state=state,
            pid=100 + number,
            host=_host(host),
            address=f"{_host(host)}:{30000 + number % tasks_per_host}",
            num_steps=1_000_000,
            steps_per_s=STEPS_PER_S,
            first_step_at_s=1.0,
            first_step=1,
            memory_limit_bytes=64 << 30,
            pace=TaskPace(at_s=0.0, steps=0, num_cpus=8, host=_host(host), links=links[host]),
            notes=("what was chosen for the user",),
        )
        statuses.append(at_step(status, step))
    copied: tuple[TaskStatus, ...] = pickle.loads(pickle.dumps(tuple(statuses)))
    return copied


def at_step(status: TaskStatus, step: int, **changes: Any) -> TaskStatus:
    """Returns a task's status as it is after so many steps."""
    at_s, epoch, sent = step / STEPS_PER_S, step // 1000, 1000 * (1 + step)
    values = {"loss": 1.0 / (1 + step), "accuracy": 0.5}
    assert status.pace is not None
    pace = dataclasses.replace(
        status.pace,
        at_s=at_s,
        steps=step,
        input_wait_s=0.1 * at_s,
        collective_wait_s=0.6 * at_s,
        cpu_s=0.3 * at_s,
        run_delay_s=0.01 * at_s,
        other_cpu_s=2.0 * at_s,
        links=tuple(
            TaskLink(host=link.host, round_trip_s=link.round_trip_s, sent=sent, resent=sent // 5000)
            for link in status.pace.links
        ),
    )
    told = {
        "step": step,
        "epoch": epoch,
        "metrics": values,
        "reports": (Report(number=1 + epoch, step=step, epoch=epoch, metrics=values),),
        "local_metrics": {**values, "input_wait": 0.1, "collective_wait": 0.6},
        "peak_memory_bytes": (1 << 30) + (step << 10),
        "pace": pace,
        "at_s": at_s,
    }
    return dataclasses.replace(status, **{**told, **changes})


def updated(statuses: Sequence[TaskStatus], *, at_s: float) -> GroupUpdated:
    update = GroupUpdate(statuses=tuple(statuses), all_placed=True, all_addressed=True)
    return GroupUpdated(update, 1000.0 + at_s, at_s)


def take(machine: RunMachine, event: GroupUpdated) -> list[dict[str, Any]]:
    """Has the machine take an update as the controller does; returns the events of the run."""
    known = journal.Known.of(machine)
    machine.handle(event)
    events = journal.news_events(machine, known, at_s=event.at_s)
    return [*events, journal.progress_event(machine, at_s=event.at_s, run_s=event.now_s, running_s=None)]


def _links(num_hosts: int) -> list[tuple[TaskLink, ...]]:
    """Returns the links of each host's tasks."""
    peers = [{(host - 1) % num_hosts, (host + 1) % num_hosts, 0} for host in range(num_hosts)]
    peers[0] = set(range(num_hosts))
    return [
        tuple(
            TaskLink(host=_host(peer), round_trip_s=2e-4, sent=0, resent=0) for peer in sorted(found - {host})
        )
        for host, found in enumerate(peers)
    ]


def _host(number: int) -> str:
    return f"10.1.{number // 250}.{number % 250}"
