"""One bare TensorFlow task, in a process of its own; see processes.py and preloaded.py."""

from __future__ import annotations

import ast
import faulthandler
import functools
import importlib
import itertools
import json
import os
import runpy
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from raydist.entry.own_source import Part, own_modules
from raydist.entry.strategy_source import own_loop, strategy_use
from raydist.outcome.codec import as_plain
from raydist.outcome.status import Command, WorkerAddresses
from raydist.planning.assignment import (
    TaskAssignment,
    assignment_environment,
    cluster_spec,
    static_environment,
)
from raydist.planning.make_plan import WITH_DEFAULT_STRATEGY
from raydist.runtime.host.log_capture import LogTarget
from raydist.runtime.host.task_files import TaskFiles
from raydist.spec.job import EntryPoint, JobSpec, KerasFlavour, RunOn, Strategy
from raydist.spec.settings.options import find_option
from raydist.spec.tasks import TaskId, TaskType
from raydist.storage.proof import StorageProof
from tests.support.parcels import FolderParcels

if TYPE_CHECKING:
    from raydist.task import TrainingRunner
    from raydist.training.reporting.progress import Commands

SERVERS = (TaskType.WORKER, TaskType.PS)


def main(request: dict[str, Any]) -> None:
    if request["target"] == "bare":
        _run_bare(**request["arguments"])
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    assignment = _assignment(request)
    environment = {
        **static_environment(keras=assignment.keras, num_cpus=1, num_gpus=0, environ=os.environ),
        **assignment_environment(assignment),
    }
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    arguments = dict(request["arguments"])
    job_options = {
        name: find_option(name).parse(value) for name, value in arguments.pop("job_options", {}).items()
    }
    is_script = request["target"] == "script"
    serves = job_options.get("run_on") is not RunOn.ALL
    is_server = assignment.strategy is Strategy.PARAMETER_SERVER and assignment.task.task_type in SERVERS
    if is_server and serves:
        from raydist.training.parameter_server.sources import start_server

        server = start_server(assignment)
        while server:
            threading.Event().wait()

    from raydist.training.reporting.progress import Commands
    from raydist.training.session import open_session

    commands = Commands()
    # As the controller does. A thread: the main one may hold the event's lock.
    signal.signal(signal.SIGUSR2, lambda *_: threading.Thread(target=commands.finish.set).start())
    signal.signal(signal.SIGURG, lambda *_: threading.Thread(target=commands.profile.set).start())
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=commands.save.set).start())
    told = Path(request["folder"]).parent / "workers.json"
    threading.Thread(target=_follow_workers, args=(told, commands), daemon=True).start()
    last = functools.partial(commands.take, Command.SAVE_LAST)
    signal.signal(signal.SIGALRM, lambda *_: threading.Thread(target=last).start())
    assignment = _assignment(request, **job_options)
    if is_script:
        _run_script(request, assignment, **arguments)
        return
    module, _, function = request["target"].partition(":")
    with open_session(assignment, commands=commands) as context:
        result = getattr(importlib.import_module(module), function)(context, **arguments) or {}
    _write(Path(request["folder"]), result)


def _run_bare(file: str, args: Sequence[str]) -> NoReturn:
    """Runs a script as Python does, to the end of the process."""
    os.chdir(Path(file).parent)
    sys.path.insert(0, os.getcwd())
    sys.argv = [file, *args]
    runpy.run_path(file, run_name="__main__")
    sys.exit()


def _follow_workers(told: Path, commands: Commands) -> None:
    """Passes on where the workers are whenever the test says so."""
    known = ""
    for number in itertools.count():
        while not told.exists() or told.read_text() == known:
            time.sleep(0.05)
        known = told.read_text()
        addresses = {int(index): address for index, address in json.loads(known).items()}
        commands.workers.put(WorkerAddresses(number=number, addresses=addresses))


def _run_script(
    request: dict[str, Any],
    assignment: TaskAssignment,
    file: str | Path,
    keeps_files: bool = False,
    killed_at: Mapping[str, Mapping[str, int]] | None = None,
) -> None:
    """Runs it as an actor does; the last status is what is returned.

    Args:
      keeps_files: Whether what the chief writes into its working folder is stored.
      killed_at: By task, after how many `steps`, or `lines` that it has printed, it is killed.
    """
    from raydist.task import TrainingRunner

    class Lease:
        port = 0

        def another(self) -> Lease:
            return self

        def close(self) -> None: ...

    file = Path(file)
    part = Part(file.name, ast.parse(file.read_text()))
    parts = [part, *own_modules([part], file=file, roots=[file.parent])]
    builds_none = assignment.job.default_strategy and assignment.strategy in WITH_DEFAULT_STRATEGY
    builds_none = builds_none and strategy_use(parts, has_context=False) is None
    loop = own_loop(parts)
    assignment = replace(
        assignment,
        job=replace(
            assignment.job,
            entry_point=EntryPoint(function="", file=file.name),
            working_dir=str(file.parent) if builds_none else None,
        ),
        has_default_strategy=builds_none and loop is None,
        has_own_loop=builds_none and loop is not None,
    )
    folder = file.parent
    if builds_none:  # each task has a copy of its own, which no result is looked for in
        folder = Path(shutil.copytree(folder, Path(request["folder"]) / "code"))
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    if keeps_files:
        target = log_target(request["storage"], request["task"], attempt=request["attempt"])
        files = TaskFiles(Path(request["folder"]), target, is_chief=assignment.is_chief)
        files.watch_working_folder(folder)
        assignment = replace(assignment, files=files)
    runner = TrainingRunner(assignment.task, "host")
    save = functools.partial(runner.handle, Command.SAVE)
    signal.signal(signal.SIGHUP, lambda *_: threading.Thread(target=save).start())
    if killed_at and request["task"] in killed_at:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        given = (runner, Path(request["folder"], "output.txt"), killed_at[request["task"]])
        threading.Thread(target=_die, args=given, daemon=True).start()
    status = runner.run(assignment, folder, Lease())
    _write(
        Path(request["folder"]),
        {**as_plain(status), "traceback": status.failure and status.failure.traceback},
    )


def _die(runner: TrainingRunner, output: Path, progress: Mapping[str, int]) -> None:
    """Kills this process in the middle of what it does."""
    steps, lines = (progress.get(name, sys.maxsize) for name in ("steps", "lines"))
    while runner.status().step < steps and output.read_bytes().count(b"\n") < lines:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)


def log_target(storage_uri: str, task: str, *, attempt: int) -> LogTarget:
    return LogTarget(storage_uri=storage_uri, run="test", task=TaskId.parse(task), attempt=attempt)


def _assignment(request: dict[str, Any], **job_options: Any) -> TaskAssignment:
    strategy = Strategy(request["strategy"])
    addresses = {TaskId.parse(name): address for name, address in request["addresses"].items()}
    task = TaskId.parse(request["task"])
    num_workers = sum(one.task_type is TaskType.WORKER for one in addresses)
    return TaskAssignment(
        task=task,
        job=JobSpec(
            name="test",
            entry_point=EntryPoint(function="train", file="job.py"),
            storage=request["storage"],
            **{"export": False, **job_options},  # an export costs more than most tests' trainings
        ),
        strategy=strategy,
        keras=KerasFlavour(request["keras"]),
        cluster_spec=cluster_spec(strategy, addresses),
        attempt=request["attempt"],
        run_uri=request["storage"] + "/test",
        num_workers=num_workers,
        shares=tuple(request["shares"]),
        num_slots=request["num_workers"] if strategy is Strategy.PARAMETER_SERVER else num_workers,
        num_ps=sum(one.task_type is TaskType.PS for one in addresses),
        address=addresses[task],
        devices=request["devices"],
        proof=_proof(request),
        parcels=FolderParcels(Path(request["folder"]).parent / "parcels"),
    )


def _proof(request: dict[str, Any]) -> StorageProof | None:
    if request["token"] is None:
        return None
    return StorageProof(storage_uri=request["storage"], run="test", token=request["token"])


def _write(folder: Path, result: dict[str, Any]) -> None:
    import numpy as np

    arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
    np.savez(folder / "arrays.npz", **arrays)
    values = {name: value for name, value in result.items() if name not in arrays}
    (folder / "values.json").write_text(json.dumps(values))
