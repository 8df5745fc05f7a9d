"""What a run of a thousand tasks costs whoever controls it, with hosts and tasks that are described.

    python -m tests.benchmarks.scale [--tasks 1000 10000] [--seconds 30] [--agents 0] [--nodes 1]

For each number of tasks, eight to a host and without Ray or TensorFlow: one update with a status of each task
(target: at most 5 ms for 1,000, 50 ms for 10,000), the bytes of all assignments (20 MB for 10,000), the CPU
time of a controller whose tasks tell their status twice a second, its record and events on storage included
(15% of a core for 1,000), what these write in an hour, and `raydist plan`, `status`, `list` and `report` as
processes (1 s each).

The controller's clock is simulated, and its tasks have trained for some minutes before it is measured, so
that it looks for stragglers, slow links and growing memory as it does in a long run; --seconds are those of
its clock. What it takes to describe the statuses is left out. The commands find the metrics of five and a
half minutes and the log of each task on storage, but of no more than 1,000 tasks.

With --agents N: a run of N agents of a real Ray on this machine, whose tasks count instead of training: the
seconds until all run, the CPU time of the driver while they do, and the seconds to the end. With --nodes M
they are on M nodes of that Ray, of which one is killed with its agents while another one has room for as
many: the failures that are recorded (target: 1), the attempts that are lost (1), and the seconds until all
run again.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[2]))

from raydist.controller.controller import Controller, record_every_s
from raydist.controller.journal import PROGRESS
from raydist.controller.memory_growth import NUM_SAMPLES, SAMPLE_S
from raydist.controller.result import RunPlaces
from raydist.controller.task_group import GroupUpdate, SystemClock
from raydist.metrics.parquet import GROWS_TO_BYTES, ROW_BYTES, SCHEMA, file_of
from raydist.outcome.result import RunResult
from raydist.outcome.status import Command, RunState, Scope, TaskState, TaskStatus
from raydist.planning.assignment import make_assignments
from raydist.planning.describe import describe_job, describe_plan
from raydist.planning.plan import Plan
from raydist.runtime.cluster.connection import Connection, connect
from raydist.runtime.group.group import LaunchSpec
from raydist.runtime.group.launcher import RayLauncher
from raydist.spec.tasks import TaskId
from raydist.storage.log_times import encode_marks
from raydist.storage.run_record import RunRecord, RunRecordStore
from raydist.storage.run_storage import RunStorage, open_run
from raydist.storage.segments import EventWriter
from tests.benchmarks.figures.printing import figure
from tests.support.fakes import FakeClock
from tests.support.large_runs import (
    STEPS_PER_S,
    TASKS_PER_HOST,
    at_step,
    large_machine,
    statuses_at,
    take,
    updated,
)
from tests.support.ray_heads import RayHead, ray_head, ray_node

PROGRESS_S = 0.5
# So long a driver waits for more news before it takes them.
_GATHERED_S = 0.02
_MOST_STORED = 1000  # of tasks
_ROUNDS = 9
_WATCH_S = 30.0
_RUNNER = "tests.support.runners:IdlingRunner"


def time_updates(num_tasks: int) -> None:
    for what, first in (("all_statuses", num_tasks), ("one_status", 1)):
        machine = large_machine(num_tasks)
        take(machine, updated(statuses_at(machine, 1), at_s=1.0))
        took, events = [], []  # kept: releasing the old statuses is part of a controller's CPU time below
        for number in range(_ROUNDS):
            event = updated(statuses_at(machine, 2 + number)[:first], at_s=1.5 + number / 2)
            events.append(event)
            gc.collect()  # what making the statuses has left, which is no work of the machine
            began_at_s = time.perf_counter()
            take(machine, event)
            took.append(1e3 * (time.perf_counter() - began_at_s))
        figure(f"{what}_{num_tasks}", took, "ms")


def measure_assignments(num_tasks: int) -> None:
    machine = large_machine(num_tasks)
    addresses = {one.task: one.address or "" for one in statuses_at(machine, 1)}
    assignments = make_assignments(machine.plan, addresses, attempt=0, run_uri="/runs/r")
    common = assignments[machine.plan.tasks[0]]
    own = sum(len(pickle.dumps(one.own_part(common))) for one in assignments.values())
    once = len(pickle.dumps(common))
    figure(f"assignments_sent_{num_tasks}", (own + once) / 1e6, "MB from the driver")
    figure(f"assignment_{num_tasks}", own / num_tasks, "B for each task")
    per_host = once * (num_tasks // TASKS_PER_HOST) / 1e6
    figure(f"assignments_copied_{num_tasks}", per_host, "MB to all hosts")


class _Group:
    """A TaskGroup whose tasks tell their status twice a second of a simulated clock, until the time is up.

    They tell it one after the other, so that each poll finds a few. Before that time they tell it as seldom
    as their memory is looked at.

    Attributes:
      has_begun: Whether that time has.
      cpu_s: What was used of a CPU in it, but for making the statuses.
    """

    def __init__(self, statuses: Sequence[TaskStatus], clock: FakeClock, *, seconds: float) -> None:
        self._statuses = statuses
        self._clock = clock
        self._seconds = seconds
        self._news = self._all_news()
        self.has_begun = False
        self.cpu_s = 0.0

    def poll(self, *, timeout_s: float) -> GroupUpdate:
        return GroupUpdate(statuses=next(self._news), all_placed=True, all_addressed=True)

    def _all_news(self) -> Iterator[tuple[TaskStatus, ...]]:
        for _ in range(NUM_SAMPLES + 1):
            yield self._told(self._statuses)
            self._clock.advance(SAMPLE_S)
        self.has_begun = True
        num_parts = round(PROGRESS_S / _GATHERED_S)
        for number in range(round(self._seconds / _GATHERED_S)):
            news = self._told(self._statuses[number % num_parts :: num_parts])
            self.cpu_s -= time.process_time()
            yield news
            self.cpu_s += time.process_time()
            self._clock.advance(_GATHERED_S)
        yield self._told(self._statuses, state=TaskState.FINISHED)

    def _told(self, statuses: Sequence[TaskStatus], **changes: Any) -> tuple[TaskStatus, ...]:
        step = 1 + round(self._clock.now() * STEPS_PER_S)
        return tuple(at_step(one, step, **changes) for one in statuses)

    def command(self, command: Command, tasks: Sequence[TaskId] = ()) -> None: ...

    def replace(self, task: TaskId) -> None: ...

    def stop(self, *, for_another: bool = False, keeps_state: bool = True) -> None: ...

    def last_update(self) -> GroupUpdate:
        return GroupUpdate()


class _Launcher:
    def __init__(self, plan: Plan, group: Callable[[], _Group]) -> None:
        self._plan = plan
        self._group = group

    def replan(self, **facts: Any) -> Plan:
        return self._plan

    def room(self, plan: Plan, *, is_placed: bool) -> int:
        return plan.num_workers

    def launch(self, plan: Plan, *, attempt: int) -> _Group:
        return self._group()

    def close(self) -> None: ...


def time_controller(num_tasks: int, folder: Path, *, seconds: float) -> None:
    machine, clock = large_machine(num_tasks), FakeClock()
    run = f"of-{num_tasks}"
    storage = open_run(str(folder), run=run)
    events, records = EventWriter.open(storage), RunRecordStore(storage)
    constants = {"spec": describe_job(machine.plan.job), "plan": describe_plan(machine.plan)}
    written = {"records": 0, "bytes": 0}

    def record(result: RunResult) -> None:
        if not group.has_begun:
            return
        records.replace(RunRecord.of(result, **constants))
        written["records"] += 1
        written["bytes"] += (folder / run / "run.json").stat().st_size

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == PROGRESS:
            events.tick()
        else:
            events.append(event)

    group = _Group(statuses_at(machine, 1), clock, seconds=seconds)
    controller = Controller(
        machine,
        launcher=_Launcher(machine.plan, lambda: group),
        clock=clock,
        places=RunPlaces(storage=storage.uri, task_logs=lambda task, attempt: f"{attempt}/{task}"),
        record=record,
        on_event=on_event,
    )
    result = controller.run()
    assert (result.state, result.notes) == (RunState.SUCCEEDED, ("what was chosen for the user",))
    events.flush()
    record = written["bytes"] / written["records"]
    an_hour = 3600 / record_every_s(num_tasks) * record
    print(f"{num_tasks} tasks: {written['records']} records in {clock.now():.0f} s")
    figure(f"controller_{num_tasks}", 100 * group.cpu_s / seconds, "% of a core")
    figure(f"cpu_a_minute_{num_tasks}", 60 * group.cpu_s / seconds, "s")
    figure(f"record_{num_tasks}", record / 1e6, "MB")
    figure(f"stored_an_hour_{num_tasks}", an_hour / 1e6, "MB")
    store_files(storage, machine.plan.tasks[:_MOST_STORED])


def store_files(storage: RunStorage, tasks: Sequence[TaskId]) -> None:
    """Stores metrics as tasks have stored them after a few minutes, and logs."""
    names = ("loss", "accuracy", "input_wait", "collective_wait")
    num_steps = round(330 * STEPS_PER_S)
    steps_a_file = GROWS_TO_BYTES // ROW_BYTES // len(names)
    segments = [(begin, min(begin + steps_a_file, num_steps)) for begin in range(0, num_steps, steps_a_file)]
    step = np.repeat(np.arange(1, 1 + num_steps), len(names))
    columns = {
        "run": [storage.run] * len(step),
        "attempt": np.zeros(len(step), np.int32),
        "step": step,
        "epoch": step // 1000,
        "wall_time": 1.7e9 + step / STEPS_PER_S,
        "scope": [Scope.LOCAL.value] * len(step),
        "name": names * num_steps,
        "value": np.random.default_rng(0).random(len(step)),
    }
    for task in tasks:
        rows = pa.table({**columns, "task": [str(task)] * len(step)}).select(SCHEMA.names).cast(SCHEMA)
        for seq, (begin, end) in enumerate(segments):
            part = rows.slice(len(names) * begin, len(names) * (end - begin))
            storage.write_bytes(storage.metrics_segment(task, attempt=0, seq=seq), file_of(part))
        log = "".join(f"{task} says something, number {number}\n" for number in range(50))
        storage.write_bytes(storage.log_times(task, attempt=0, seq=0), encode_marks([(1.7e9, len(log))]))
        storage.write_text(storage.log_segment(task, attempt=0, seq=0), log)


def time_commands(num_tasks: int, folder: Path) -> None:
    hosts = -(-num_tasks // TASKS_PER_HOST)
    described = f"simulated:hosts={hosts},cpus=8,gpus=8,memory=64GiB"
    job = Path(__file__).parents[2] / "jobs/cifar.py"
    storage = ("--storage", str(folder))
    commands = {
        "plan": ("plan", str(job), "--address", described, "--workers", str(num_tasks)),
        "plan --json": ("plan", str(job), "--address", described, "--workers", str(num_tasks), "--json"),
        "status": ("status", f"of-{num_tasks}", *storage),
        "status --json": ("status", f"of-{num_tasks}", "--json", *storage),
        "list": ("list", *storage),
        "report": ("download", f"of-{num_tasks}", "page", str(folder / "report.html"), *storage),
    }
    for name, arguments in commands.items():
        took = []
        for _ in range(3):
            began_at_s = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "raydist.cli.main", *arguments], check=True, stdout=subprocess.DEVNULL
            )
            took.append(time.perf_counter() - began_at_s)
        figure(f"{name.replace(' --', '_')}_{num_tasks}", took, "s as a process")


class _Watched:
    """The controller of a run of agents, in a thread, and when its events came."""

    def __init__(self, connection: Connection, num_agents: int, folder: Path) -> None:
        machine = large_machine(
            num_agents, params={"steps": 10**6}, storage=str(folder), start_timeout=1200.0
        )
        run_uri = str(folder / "r")
        self.events: list[tuple[float, dict[str, Any]]] = []
        launch = LaunchSpec(connection=connection, storage_uri=str(folder), run_uri=run_uri, runner=_RUNNER)
        launcher = RayLauncher(machine.plan, launch)
        self._controller = Controller(
            machine,
            launcher=launcher,
            clock=SystemClock(),
            places=RunPlaces(storage=run_uri, task_logs=lambda task, attempt: f"{attempt}/{task}"),
            record=lambda result: None,
            on_event=lambda event: self.events.append((time.monotonic(), event)),
        )
        self._thread = threading.Thread(target=self._controller.run)
        self._thread.start()

    def wait_until_all_run(self, attempt: int) -> None:
        while not (self.status().attempts > attempt and self.status().state is RunState.RUNNING):
            assert self._thread.is_alive(), self.status().error
            time.sleep(0.1)

    def status(self) -> RunResult:
        return self._controller.status()

    def stop(self) -> float:
        began_at_s = time.monotonic()
        self._controller.request_stop()
        self._thread.join()
        return time.monotonic() - began_at_s


def run_agents(num_agents: int, folder: Path, *, num_nodes: int) -> None:
    own = num_agents // num_nodes
    pythonpath = str(Path(__file__).parents[2])
    with ExitStack() as stack:
        on_head = num_agents if num_nodes == 1 else 0
        head = stack.enter_context(ray_head(num_cpus=on_head, PYTHONPATH=pythonpath))
        # Many nodes start beside many agents here, on a few cores.
        os.environ.update({**head.environ, "PYTHONPATH": pythonpath, "RAY_raylet_start_wait_time_s": "300"})
        nodes, numbers = [ExitStack() for _ in range(num_nodes if num_nodes > 1 else 0)], itertools.count(11)
        for node in nodes:
            stack.enter_context(node).enter_context(_node(head, num_cpus=own, number=next(numbers)))
        with connect(head.address) as connection:
            began_at_s, cpu_s = time.monotonic(), time.process_time()
            watched = _Watched(connection, num_agents, folder)
            watched.wait_until_all_run(attempt=0)
            start_s = time.monotonic() - began_at_s
            figure("agents_start", start_s, f"s until {num_agents} agents run")
            figure("agents_start_cpu", time.process_time() - cpu_s, "s of CPU time of the driver")
            cores = len(os.sched_getaffinity(0))
            figure("agents_start_each", cores * start_s / num_agents, f"s of {cores} cores for each agent")
            began_at_s, cpu_s = time.monotonic(), time.process_time()
            time.sleep(_WATCH_S)
            share = (time.process_time() - cpu_s) / (time.monotonic() - began_at_s)
            figure("agents_driver", 100 * share, "% of a core for the driver while they run")
            figure("agents_status", 1e3 * share * PROGRESS_S / num_agents, "ms of CPU time for each status")
            if nodes:
                # Room for what is lost.
                stack.enter_context(_node(head, num_cpus=own, number=next(numbers)))
                lose_node(watched, nodes[0], num_tasks=own)
            figure("agents_stop", watched.stop(), "s from the stop until none is left")


def _node(head: RayHead, *, num_cpus: int, number: int) -> AbstractContextManager[None]:
    """Joins a node with an address of its own, by which raydist sees that a host is gone."""
    options = (f"--node-ip-address=127.0.0.{number}",)
    return ray_node(head.address, num_cpus=num_cpus, is_lost=True, options=options)


def lose_node(watched: _Watched, node: ExitStack, *, num_tasks: int) -> None:
    num_before = len(watched.events)
    began_at_s, cpu_s = time.monotonic(), time.process_time()
    node.close()
    watched.wait_until_all_run(attempt=1)
    took_s, cpu_s = time.monotonic() - began_at_s, time.process_time() - cpu_s
    since = watched.events[num_before:]
    failures = [(at_s - began_at_s, event) for at_s, event in since if event["event"] == "attempt"]
    lost = sum(event["event"] == "task_failed" for _, event in since)
    figure("lost_node_tasks", lost, f"tasks lost, of {num_tasks} on the node")
    figure("lost_node_failures", len(failures), "failures")
    figure("lost_node_attempts", watched.status().attempts - 1, "attempts lost")
    figure("lost_node_noticed", failures[0][0], "s until it is noticed")
    figure("lost_node_again", took_s, "s until all run again")
    figure("lost_node_cpu", cpu_s, "s of CPU time of the driver until then")
    for at_s, event in failures:
        print(f"  {at_s:.1f} s: {event['message'][:400]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, nargs="*", default=[1000, 10_000])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--agents", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rd-", dir="/tmp") as name:
        for num_tasks in arguments.tasks:
            time_updates(num_tasks)
            measure_assignments(num_tasks)
            time_controller(num_tasks, Path(name), seconds=arguments.seconds)
            time_commands(num_tasks, Path(name))
        if arguments.agents:
            run_agents(arguments.agents, Path(name), num_nodes=arguments.nodes)


if __name__ == "__main__":
    main()
